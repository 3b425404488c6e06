"""Count what a step of every method costs and write it down.

    python docs/budget.py                all methods, some minutes on a CPU
    python docs/budget.py credo uniot    these; the others stay as they are
    python docs/budget.py --pages        only the tables, from the stored record

Writes ``tllib_ext/experiments/data/budget.json``, which ``--dry-run`` reads, and the tables of ``docs/gpu.md``.
"""

import argparse
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import List, Tuple

from tllib_ext.cli.main import main as tllib_ext
from tllib_ext.experiments.cards import CARDS, budgets, needed
from tllib_ext.experiments.estimate import duration
from tllib_ext.experiments.plans import EXPERIMENTS
from tllib_ext.io import write_between_marks, write_json
from tllib_ext.methods import METHODS
from tllib_ext.training.budget import measure
from tllib_ext.training.config import RunConfig
from tllib_ext.typing import Record

DOCS = Path(__file__).resolve().parent
RECORD = DOCS.parent / "tllib_ext" / "experiments" / "data" / "budget.json"


def count(name: str) -> Record:
    """A step with and without activation checkpointing."""
    plain, saved = measure(name), measure(name, checkpoint=True)
    return {"forwards": plain.forwards, "backwards": plain.backwards, "tflop": round(plain.flops / 1e12, 3),
            "peak_gb": round(plain.peak / 1e9, 2), "tflop_checkpointed": round(saved.flops / 1e12, 3),
            "peak_gb_checkpointed": round(saved.peak / 1e9, 2), "weights_gb": round(plain.weights / 1e9, 3)}  # fmt: skip


def tables() -> str:
    """The record, and a run of the paper's length on every card."""
    lines = ["", "| method | forward | backward | 10^12 operations | memory | checkpointed | time |", "|---" * 7 + "|"]
    for name, step in budgets().items():
        extra = step["tflop_checkpointed"] / step["tflop"] - 1
        passes = f"{step['forwards']:g} | {step['backwards']:g} | {step['tflop']:.2f}"
        lines.append(f"| `{name}` | {passes} | {step['peak_gb']:.1f} GB | {step['peak_gb_checkpointed']:.1f} GB | +{extra:.0%} |")
    config = RunConfig(method="divergence", steps=5001)
    lines += ["", "| card | memory | `divergence`, 5001 steps, fp32 | half precision |", "|---" * 4 + "|"]
    for name, card in CARDS.items():
        hours: List[str] = []
        for precision in ("fp32", "auto"):
            hours.append(duration(5001 * needed(replace(config, precision=precision), name).seconds))
        lines.append(f"| {name} | {card.memory:.0f} GB | {hours[0]} | {hours[1]} |")
    cards = ("V100", "RTX3090", "A100")
    lines += ["", f"| `tllib-ext reproduce` | runs | {' | '.join(cards)} |", "|---" * (2 + len(cards)) + "|"]
    for name in EXPERIMENTS:
        runs, hours = zip(*(cost(name, card) for card in cards))
        lines.append(f"| `{name}` | {runs[0]} | {' | '.join(f'{float(text):.0f} h' for text in hours)} |")
    return "\n".join([*lines, "", ""])


def cost(experiment: str, card: str) -> Tuple[str, str]:
    """Runs and GPU hours of an experiment of the paper on Office-31's images, three seeds, as ``--dry-run`` prints them."""
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()) as out:
        (Path(folder) / "image_list").mkdir()
        for domain in ("amazon", "dslr", "webcam"):
            (Path(folder) / "image_list" / f"{domain}.txt").touch()
        words = ["reproduce", experiment, folder, "--data", "Office31", "--out", f"{folder}/out", "--dry-run", "--card", card]
        assert tllib_ext(words) == 0
    found = re.search(r"of (\d+) cells to run, ([\d.]+) GPU hours", out.getvalue())
    assert found is not None, out.getvalue()
    return found[1], found[2]


def main() -> int:
    """Count and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="default: all that train")
    parser.add_argument("--pages", action="store_true", help="count nothing")
    args = parser.parse_args()
    if not args.pages:
        known = [name for name in METHODS if not METHODS.get(name).training_free]
        made = {**(budgets() if RECORD.exists() else {}), **{name: count(name) for name in args.methods or known}}
        about = "one step, ResNet-50, 224 px, 36 images per domain, float32; GB are 10^9 bytes of all live tensors"
        write_json(RECORD, {"about": about, "methods": {name: made[name] for name in known if name in made}})
        budgets.cache_clear()
    write_between_marks(DOCS / "gpu.md", tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())
