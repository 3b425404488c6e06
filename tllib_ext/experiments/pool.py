"""Long-lived worker processes for the cells of a grid: torch is imported once per worker, not once per cell."""

import os
import time
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple, cast

from tqdm import tqdm

from tllib_ext.errors import say
from tllib_ext.experiments.grid import Cell
from tllib_ext.experiments.worker import PATIENCE, serve
from tllib_ext.io import write_json

__all__ = ["run_cells"]


def run_cells(
    cells: Sequence[Cell], out: Path, jobs: int = 1, keep: Sequence[str] = (), total: Optional[int] = None
) -> List[Tuple[Cell, str]]:
    """Run ``cells``, ``jobs`` at a time; returns those that failed and why.

    Args:
        cells (sequence of Cell): what :func:`~tllib_ext.experiments.runner.check_cells` returned
        out (Path): each cell gets ``out/cells/<name>``
        jobs (int): worker processes, each with the threads of its cell's configuration, default one
        keep (sequence of str): heavy files of each cell that are kept: ``tb``, ``checkpoints``, ``model.safetensors``
        total (int, optional): size of the whole grid, for the progress bar
    """
    failed: List[Tuple[Cell, str]] = []
    if jobs > 1:  # one thread that decodes images beside each cell
        cells = [replace(cell, config=replace(cell.config, workers=min(1, cell.config.workers))) for cell in cells]
    total = total or len(cells)
    with tqdm(total=total, initial=total - len(cells), unit="cell", dynamic_ncols=True, disable=None) as bar:
        for cell, error, line in _results(cells, Path(out), max(1, min(jobs, len(cells))), keep):
            if error is not None:
                failed.append((cell, error))
            say(f"{cell.name}  {line}", tqdm.write)
            bar.update()
    return failed


def _results(cells: Sequence[Cell], out: Path, jobs: int, keep: Sequence[str]) -> Iterator[Tuple[Cell, Optional[str], str]]:
    """(cell, error or None, line to print), as cells end. A worker that dies takes only its cell with it."""
    waiting = list(reversed(cells))
    busy: Dict[Connection, Tuple[BaseProcess, Cell]] = {}
    idle: List[Tuple[BaseProcess, Connection]] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                process, connection = idle.pop() if idle else _start(out, keep, cells[0].config.threads or 1)
                cell = waiting.pop()
                busy[connection] = (process, cell)
                connection.send(cell)
            for connection in cast(List[Connection], wait(list(busy))):
                process, cell = busy[connection]
                try:
                    error, line = connection.recv()
                    idle.append((process, connection))
                except (EOFError, OSError):
                    process.join()
                    error = f"its process died (exit code {process.exitcode})"
                    line = f"failed: {error}"
                    (out / "cells" / cell.name).mkdir(parents=True, exist_ok=True)
                    write_json(out / "cells" / cell.name / "error.json", {"error": error})
                del busy[connection]
                yield cell, error, line
    finally:
        _stop([process for process, _ in busy.values()], idle)


def _stop(busy: Sequence[BaseProcess], idle: Sequence[Tuple[BaseProcess, Connection]]) -> None:
    """Also on Ctrl-C: a worker finishes its step and saves it; the next start goes on from there."""
    for _, connection in idle:
        connection.close()
    for process in busy:
        process.terminate()
    end = time.monotonic() + PATIENCE
    for process in [*busy, *(process for process, _ in idle)]:
        process.join(max(0.1, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _start(out: Path, keep: Sequence[str], threads: int) -> Tuple[BaseProcess, Connection]:
    context = get_context("spawn")
    here, there = context.Pipe()
    # Not a daemon: it saves its cell's state before it ends.
    process = context.Process(target=serve, args=(there, out, keep, threads, os.getpid()))
    # Read by the libraries when they are first imported: must be set before the process starts.
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(threads) for name in names})
    try:
        process.start()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    there.close()
    return process, here
