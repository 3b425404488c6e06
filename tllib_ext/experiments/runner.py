"""One cell of a grid on disk: the state of its folder, how it is run, what it leaves."""

import json
import shutil
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from tllib_ext.errors import StopRequested, UserError
from tllib_ext.experiments.grid import Cell
from tllib_ext.io import write_json
from tllib_ext.training.config import RunConfig
from tllib_ext.training.run_dir import Lock
from tllib_ext.training.setting import COUNT_LIMIT
from tllib_ext.typing import Record

__all__ = ["read_object", "state_of", "check_cells", "read_records", "run_cell", "cell_config"]

#: heavy files that a table does not need.
_HEAVY = ("checkpoints", "tb", "model.safetensors")


def read_object(file: Path) -> Record:
    """The object in a JSON file; empty if there is none that can be read."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _essential(config: RunConfig) -> Record:
    """What two runs of one cell must have in common, as plain values."""
    values = json.loads(json.dumps(config.to_dict()))
    values["hparams"] = {name: str(value) for name, value in values["hparams"].items()}
    return {name: values[name] for name in ("root", *RunConfig.essential())}


def _recorded(folder: Path) -> Optional[Record]:
    """The essential settings in a cell's folder, None if it has none that can be read."""
    settings = read_object(folder / "cell.json").get("settings")
    try:
        return _essential(RunConfig.from_record(settings)) if isinstance(settings, dict) else None
    except UserError:
        return None


def state_of(cell: Cell, out: Path) -> str:
    """``finished``, ``other`` (made with other settings), ``failed``, ``begun`` or ``new``."""
    folder = Path(out) / "cells" / cell.name
    recorded, finished = _recorded(folder), bool(read_object(folder / "results.json"))
    if recorded is None and not finished:
        return "new"
    if recorded != _essential(cell.config):
        return "other"
    return "finished" if finished else "failed" if (folder / "error.json").exists() else "begun"


def check_cells(cells: Sequence[Cell], out: Path, overwrite: bool = False) -> List[Cell]:
    """The cells still to be run; cells made with other settings are an error unless they may be replaced.

    The caller holds the lock of the grid's folder.
    """
    states = [(cell, state_of(cell, out)) for cell in cells]
    if overwrite:
        for cell, state in states:
            folder = Path(out) / "cells" / cell.name
            if state != "finished" and folder.exists():
                Lock(folder).release()  # a run in it, of whatever process, is an error
                shutil.rmtree(folder)
    others = [cell for cell, state in states if state == "other"]
    if others and not overwrite:
        before, now = _recorded(Path(out) / "cells" / others[0].name) or {}, _essential(others[0].config)
        defaults = _essential(RunConfig())
        shown = lambda values, n: "default" if values.get(n) == defaults[n] else values.get(n)  # noqa: E731
        changes = ", ".join(f"{n}: {shown(before, n)} there, {shown(now, n)} now" for n in now if before.get(n) != now[n])
        raise UserError(f"{len(others)} cells in {out} have other settings ({changes}): choose another --out, or add --overwrite")
    return [cell for cell, state in states if state != "finished"]


def read_records(cells: Sequence[Cell], out: Path) -> List[Record]:
    """One record per cell: its keys, its folder and its ``results.json``, or the error that it ended with."""
    records = []
    for cell in cells:
        folder = Path(out) / "cells" / cell.name
        record = {**cell.keys, "cell": cell.name}
        if state_of(cell, out) == "finished":
            results = read_object(folder / "results.json")  # without its matrices: a record is a line of a table
            record.update({name: value for name, value in results.items() if not isinstance(value, list)}, **cell.keys)
            record["seconds"] = read_object(folder / "cell.json").get("seconds")
            record["commit"] = read_object(folder / "env.json").get("commit")
        else:
            record["error"] = read_object(folder / "error.json").get("error", "not run")
        records.append(record)
    return records


def run_cell(cell: Cell, out: Path, keep: Sequence[str] = ()) -> Tuple[Optional[str], str]:
    """Run one cell in its folder; returns its error (None if it went well) and a line about it.

    ``keep`` names heavy files that stay.
    """
    folder = Path(out) / "cells" / cell.name
    # An unfinished run of the same settings continues from its checkpoint, if it has one.
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.json").unlink(missing_ok=True)
    about = {"keys": cell.keys, "settings": cell.config.changed()}
    write_json(folder / "cell.json", about)
    start = time.perf_counter()
    try:
        with open(folder / "log.txt", "a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
            from tllib_ext.training.build import build
            from tllib_ext.training.trainer import train

            # The recorded command is the cell's own, without what only matters inside of a grid.
            train(replace(build(cell_config(cell, folder)), given=cell.config))
        results = read_object(folder / "results.json")
        if not results:
            raise RuntimeError("the run ended without results.json")
    except StopRequested:
        raise
    except Exception as problem:  # whatever it is, the other cells go on
        error = f"{'' if isinstance(problem, UserError) else type(problem).__name__ + ': '}{' '.join(str(problem).split())}"
        write_json(folder / "error.json", {"error": error, "traceback": traceback.format_exc()})
        return error, f"failed: {error}"
    seconds = time.perf_counter() - start
    write_json(folder / "cell.json", {**about, "seconds": round(seconds, 2)})
    _lighten(folder, keep)
    shown = f"OS {100 * results['os']:.1f}" if results.get("os") is not None else "no labels"
    return None, f"{shown}  {seconds:.0f} s"


def _lighten(folder: Path, keep: Sequence[str]) -> None:
    for name in set(_HEAVY) - set(keep):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def cell_config(cell: Cell, folder: Path) -> RunConfig:
    """The configuration of a cell in its folder."""
    config = cell.config
    return replace(
        config,
        log=str(folder),
        # A short cell is quicker repeated than saved ten times; a long one is saved by the minutes.
        checkpoint_every=config.checkpoint_every or COUNT_LIMIT,
        no_report=True,
    )
