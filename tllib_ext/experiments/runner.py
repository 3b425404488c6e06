"""One cell of a grid on disk: what state its folder is in, how it is run, what it leaves."""

import argparse
import json
import shutil
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tllib_ext.cli.parser import Parser, add_run_arguments
from tllib_ext.errors import StopRequested, UserError
from tllib_ext.experiments.grid import Cell
from tllib_ext.io import write_json
from tllib_ext.training.run_dir import FREE

__all__ = ["run_defaults", "read_object", "state_of", "check_cells", "collect", "run_cell", "cell_args", "command_words"]

#: heavy files that a table does not need.
_HEAVY = ("checkpoints", "tb", "model.safetensors")


def run_defaults() -> Dict[str, Any]:
    """Every flag of one run and its default."""
    parser = Parser()
    add_run_arguments(parser)
    return vars(parser.parse_args([]))


def read_object(file: Path) -> Dict[str, Any]:
    """The object in a JSON file; empty if there is none that can be read."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _essential(settings: Dict[str, Any]) -> Dict[str, Any]:
    plain = json.loads(json.dumps(settings))
    return {name: value for name, value in plain.items() if name not in FREE or name == "root"}


def state_of(cell: Cell, out: Path) -> str:
    """``finished``, ``other`` (finished with other flags), ``failed``, ``begun`` or ``new``."""
    folder = Path(out) / "cells" / cell.name
    same = _essential(read_object(folder / "cell.json").get("settings", {})) == _essential(cell.settings)
    if read_object(folder / "results.json"):
        return "finished" if same else "other"
    if not same:
        return "new"
    return "failed" if (folder / "error.json").exists() else "begun"


def check_cells(cells: Sequence[Cell], out: Path, overwrite: bool = False) -> List[Cell]:
    """The cells still to be run; results made with other flags are an error unless they may be replaced."""
    states = [(cell, state_of(cell, out)) for cell in cells]
    if overwrite:
        for cell, state in states:
            if state != "finished":
                shutil.rmtree(Path(out) / "cells" / cell.name, ignore_errors=True)
    others = [cell for cell, state in states if state == "other"]
    if others and not overwrite:
        before = _essential(read_object(Path(out) / "cells" / others[0].name / "cell.json").get("settings", {}))
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
            results = read_object(folder / "results.json")  # without its matrices: a record is a line of a table
            record.update({name: value for name, value in results.items() if not isinstance(value, list)}, **cell.keys)
            record["seconds"] = read_object(folder / "cell.json").get("seconds")
            record["commit"] = read_object(folder / "env.json").get("commit")
        else:
            record["error"] = read_object(folder / "error.json").get("error", "not run")
        records.append(record)
    return records


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
            from tllib_ext.training.build import build, make_deterministic
            from tllib_ext.training.trainer import train

            args = cell_args(cell, folder)
            if args.deterministic:
                make_deterministic()
            train(build(args))
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
    # A short cell is quicker repeated than saved ten times; a long one is saved by the minutes.
    values["checkpoint_every"] = values["checkpoint_every"] or 10**9
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
