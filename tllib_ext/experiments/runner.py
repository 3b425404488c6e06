"""Runs the cells of a grid in long-lived worker processes; finished cells are kept, failed ones do not stop the rest."""

import argparse
import json
import os
import shutil
import signal
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from tqdm import tqdm

from tllib_ext.cli import Parser, add_run_arguments
from tllib_ext.errors import UserError
from tllib_ext.experiments.grid import Cell
from tllib_ext.files import write_json

__all__ = ["run_defaults", "state_of", "check_cells", "collect", "run_cells"]

#: flags that change where or how fast a run goes, not what comes out.
_NEUTRAL = {"log", "overwrite", "phase", "list_hp", "config", "workers", "cache", "device", "download", "no_report"}
#: heavy files that a table does not need.
_HEAVY = ("checkpoints", "tb", "model.safetensors")


def run_defaults() -> Dict[str, Any]:
    """Every flag of one run and its default."""
    parser = Parser()
    add_run_arguments(parser)
    return vars(parser.parse_args([]))


def _read(file: Path) -> Dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError):
        return {}


def _essential(settings: Dict[str, Any]) -> Dict[str, Any]:
    plain = json.loads(json.dumps(settings))
    return {name: value for name, value in plain.items() if name not in _NEUTRAL}


def state_of(cell: Cell, out: Path) -> str:
    """``finished``, ``other`` (finished with other flags), ``failed``, ``begun`` or ``new``."""
    folder = Path(out) / "cells" / cell.name
    same = _essential(_read(folder / "cell.json").get("settings", {})) == _essential(cell.settings)
    if _read(folder / "results.json"):
        return "finished" if same else "other"
    if not same:
        return "new"
    return "failed" if (folder / "error.json").exists() else "begun"


def check_cells(cells: Sequence[Cell], out: Path, overwrite: bool = False) -> List[Cell]:
    """The cells still to be run; results made with other flags are an error unless they may be replaced."""
    states = [(cell, state_of(cell, out)) for cell in cells]
    others = [cell for cell, state in states if state == "other"]
    if others and not overwrite:
        before = _essential(_read(Path(out) / "cells" / others[0].name / "cell.json").get("settings", {}))
        now = _essential(others[0].settings)
        names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        changes = ", ".join(f"{n}: {before.get(n, 'default')} there, {now.get(n, 'default')} now" for n in names)
        raise UserError(
            f"{len(others)} finished cells in {out} have other flags ({changes}): choose another --out, or add --overwrite"
        )
    return [cell for cell, state in states if state != "finished"]


def collect(cells: Sequence[Cell], out: Path) -> List[Dict[str, Any]]:
    """One record per cell: its keys, its folder and its ``results.json``, or the error that it ended with."""
    records = []
    for cell in cells:
        folder = Path(out) / "cells" / cell.name
        record = {**cell.keys, "cell": cell.name}
        if state_of(cell, out) == "finished":
            record.update(_read(folder / "results.json"), **cell.keys)
            record["seconds"] = _read(folder / "cell.json").get("seconds")
        else:
            record["error"] = _read(folder / "error.json").get("error", "not run")
        records.append(record)
    return records


def run_cells(
    cells: Sequence[Cell], out: Path, jobs: int = 1, keep_models: bool = False, total: Optional[int] = None
) -> List[Tuple[Cell, str]]:
    """Run ``cells``, ``jobs`` at a time; returns those that failed and why.

    Args:
        cells (sequence of Cell): what :func:`check_cells` returned
        out (Path): each cell gets ``out/cells/<name>``
        jobs (int): worker processes with one thread each
        keep_models (bool): keep model, checkpoint and tensorboard files of each cell
        total (int, optional): size of the whole grid, for the progress bar
    """
    failed: List[Tuple[Cell, str]] = []
    total = total or len(cells)
    with tqdm(total=total, initial=total - len(cells), unit="cell", dynamic_ncols=True) as bar:
        for cell, error, line in _pool(cells, Path(out), max(1, min(jobs, len(cells))), keep_models):
            if error is not None:
                failed.append((cell, error))
            tqdm.write(f"{cell.name}  {line}")
            bar.update()
    return failed


def _pool(cells: Sequence[Cell], out: Path, jobs: int, keep_models: bool) -> Iterator[Tuple[Cell, Optional[str], str]]:
    """(cell, error or None, line to print), as cells end. A worker that dies takes only its cell with it."""
    waiting = list(reversed(cells))
    busy: Dict[Connection, Tuple[Any, Cell]] = {}
    idle: List[Tuple[Any, Connection]] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                process, connection = idle.pop() if idle else _worker(out, keep_models)
                cell = waiting.pop()
                busy[connection] = (process, cell)
                connection.send(cell)
            for connection in wait(list(busy)):
                process, cell = busy.pop(connection)
                try:
                    error, line = connection.recv()
                    idle.append((process, connection))
                except (EOFError, OSError):
                    process.join()
                    error = f"the process died (exit code {process.exitcode})"
                    line = f"failed: {error}"
                    (out / "cells" / cell.name).mkdir(parents=True, exist_ok=True)
                    write_json(out / "cells" / cell.name / "error.json", {"error": error})
                yield cell, error, line
    finally:
        # Also on Ctrl-C: what a worker has not finished is begun again by the next start.
        for _, connection in idle:
            connection.close()
        for process, _ in busy.values():
            process.terminate()
        for process in [*(process for process, _ in idle), *(process for process, _ in busy.values())]:
            process.join(10)
            if process.is_alive():
                process.kill()


def _worker(out: Path, keep_models: bool) -> Tuple[Any, Connection]:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, out, keep_models))
    # Read by the libraries when they are first imported: must be set before the process starts.
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: "1" for name in names})
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


def _serve(connection: Connection, out: Path, keep_models: bool) -> None:
    """A worker's life: cells in, (error, line) out, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an orderly end
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            cell = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(run_cell(cell, out, keep_models))


def run_cell(cell: Cell, out: Path, keep_models: bool = False) -> Tuple[Optional[str], str]:
    """Run one cell in its folder; returns its error (None if it went well) and a line about it."""
    folder = Path(out) / "cells" / cell.name
    # An unfinished run of the same flags stays: the run continues from its checkpoint, if it has one.
    if state_of(cell, out) in ("other", "new") and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.json").unlink(missing_ok=True)
    about = {"keys": cell.keys, "settings": cell.settings}
    write_json(folder / "cell.json", about)
    start = time.perf_counter()
    try:
        with open(folder / "log.txt", "a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
            from tllib_ext.training.run import run_from_args

            run_from_args(cell_args(cell, folder))
        results = _read(folder / "results.json")
        if not results:
            raise RuntimeError("the run ended without results.json")
    except Exception as problem:  # whatever it is, the other cells go on
        error = f"{'' if isinstance(problem, UserError) else type(problem).__name__ + ': '}{' '.join(str(problem).split())}"
        write_json(folder / "error.json", {"error": error, "traceback": traceback.format_exc()})
        return error, f"failed: {error}"
    seconds = time.perf_counter() - start
    write_json(folder / "cell.json", {**about, "seconds": round(seconds, 2)})
    if not keep_models:
        _lighten(folder)
    shown = f"OS {100 * results['os']:.1f}" if results.get("os") is not None else "no labels"
    return None, f"{shown}  {seconds:.0f} s"


def _lighten(folder: Path) -> None:
    for name in _HEAVY:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def cell_args(cell: Cell, folder: Path) -> argparse.Namespace:
    """The flags of a cell as ``examples/noisy_unida.py`` would parse them."""
    values = {**run_defaults(), **cell.settings, "log": str(folder)}
    # Only the last evaluation enters a table.
    values["eval_every"] = values["eval_every"] or 10**9
    if "no_report" in values:
        values["no_report"] = True
    return argparse.Namespace(**values, command=command_words(cell.settings))


def command_words(settings: Dict[str, Any]) -> List[str]:
    """The words after ``python examples/noisy_unida.py`` that repeat a run.

    Examples::

        >>> command_words({"root": "data", "noise": "pair", "hp": ["n=2"], "scratch": True})
        ['data', '--noise', 'pair', '--hp', 'n=2', '--scratch']
    """
    words = [settings["root"]] if settings.get("root") else []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if name == "root" or value is None or value is False:
            continue
        words += [flag] if value is True else [flag, *map(str, value if isinstance(value, list) else [value])]
    return words
