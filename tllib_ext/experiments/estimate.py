"""What a grid will cost: measured on its own finished cells where there are any, else by the passes of each method."""

from pathlib import Path
from typing import List, Sequence

from prettytable import PrettyTable

from tllib_ext.experiments.cards import CARDS, budget_of, needed
from tllib_ext.experiments.grid import Cell
from tllib_ext.experiments.runner import read_object, state_of
from tllib_ext.training.config import RunConfig

__all__ = ["cell_seconds", "dry_run_text", "duration"]

#: seconds of a forward and a backward pass of small_cnn over 36 images on a CPU core.
_PASS = 0.03
#: milliseconds per step on frozen features of 2048 columns, batch 36, one core of a shared machine; there the heads and
#: the optimisers cost, not the passes; 40 for methods not listed.
_FEATURES = {"source_only": 5, "coteaching": 7, "jocor": 12, "dance_sel": 13, "dance": 14, "ovanet": 16, "dann": 27, "tcl": 27,
             "sta": 30, "divergence": 41, "uan": 45, "etn": 49}  # fmt: skip
#: seconds to start and evaluate.
_START = {"images": 60.0, "Glyphs": 4.0, "features": 2.0}


def _kind(config: RunConfig, data: str) -> str:
    if data == "features" or config.freeze_backbone:
        return "features"
    return "Glyphs" if data == "Glyphs" else "images"


def cell_seconds(config: RunConfig, data: str, card: str = "V100") -> float:
    """A guess from first principles; the order of magnitude is what counts. Images: on a GPU of the name ``card``."""
    kind = _kind(config, data)
    steps = config.steps or {"images": 5001, "Glyphs": 300, "features": 1000}[kind]
    size = config.batch_size / 36
    if config.method == "mixture":
        return _START[kind] + 5.0
    if kind == "features":
        return _START[kind] + steps * size * _FEATURES.get(config.method, 40) / 1000
    if kind == "images":
        return _START[kind] + steps * needed(config, card).seconds
    return (
        _START[kind]
        + steps * size * _PASS * (budget_of(config.method)["forwards"] + 2 * budget_of(config.method)["backwards"]) / 3
    )


def duration(seconds: float) -> str:
    """For people.

    Examples::

        >>> duration(42), duration(5400), duration(200_000)
        ('42 s', '1.5 h', '56 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.{1 if seconds < 36000 else 0}f} h"


def _too_large(cells: Sequence[Cell], card: str) -> List[str]:
    """A line if a run needs more memory than the card has."""
    limit, needs = CARDS[card].memory, [needed(cell.config, card) for cell in cells]
    most = max(needs, key=lambda need: need.memory)
    if most.memory <= limit:
        return []
    remedy = f"--checkpoint-activations needs {most.checkpointed:.1f} GB" if most.checkpointed < limit else "a smaller -b fits"
    return [f"a {card} has {limit:.0f} GB, {most.memory:.1f} GB are needed in fp32: {remedy}"]


def dry_run_text(cells: Sequence[Cell], out: Path, jobs: int, data: str, card: str = "V100", listed: int = 24) -> str:
    """The plan as a table per row, the first folders, and the cost of what is left."""
    images = _kind(cells[0].config, data) == "images"
    states = {cell.name: state_of(cell, out) for cell in cells}
    guess = {cell.name: cell_seconds(cell.config, data, card) for cell in cells}
    records = {cell.name: read_object(Path(out) / "cells" / cell.name / "cell.json") for cell in cells}
    took = {name: float(record.get("seconds") or 0) for name, record in records.items()}
    known = [cell for cell in cells if states[cell.name] == "finished" and took[cell.name]]
    scale = sum(float(took[c.name] or 0) for c in known) / sum(guess[c.name] for c in known) if known else 1.0
    table = PrettyTable(["row", "cells", "finished", "to run", "per cell", "left", *(["memory"] if images else [])], align="r")
    table.align["row"] = "l"
    total = 0.0
    for row in dict.fromkeys(cell.keys["row"] for cell in cells):
        mine = [cell for cell in cells if cell.keys["row"] == row]
        left = [cell for cell in mine if states[cell.name] != "finished"]
        own = [float(took[cell.name] or 0) for cell in mine if cell in known]
        each = sum(own) / len(own) if own else scale * sum(guess[cell.name] for cell in mine) / len(mine)
        total += each * len(left)
        memory = [f"{max(needed(cell.config, card).memory for cell in mine):.1f} GB"] if images else []
        table.add_row([row, len(mine), len(mine) - len(left), len(left), duration(each), duration(each * len(left)), *memory])
    lines: List[str] = [table.get_string()]
    lines += [f"{Path(out) / 'cells' / cell.name}  {states[cell.name]}" for cell in cells[:listed]]
    if len(cells) > listed:
        lines.append(f"… and {len(cells) - listed} more")
    if images:
        lines += _too_large(cells, card)
    where = f"one {card} in {'fp32' if cells[0].config.precision in ('fp32', 'tf32') else 'half precision'}"
    basis = f"a guess for {where if images else 'one core of a recent CPU'}; after the first cells it is measured"
    basis = f"measured on {len(known)} finished cells" if known else basis
    todo = sum(state != "finished" for state in states.values())
    cost = f"{total / 3600:.1f} GPU hours" if images else f"{duration(total)} of computing"
    lines.append(f"{todo} of {len(cells)} cells to run, {cost}, "
                 f"about {duration(total / max(1, jobs))} with --jobs {jobs} ({basis})")  # fmt: skip
    return "\n".join(lines)
