"""Run the target model on the development scenarios and write one record line a scenario.

    python tools/target_scenarios.py data --out records/target_scenarios.jsonl
    python tools/target_scenarios.py data --groups office31,office31_tasks --out records/target_scenarios_office31.jsonl

The first line of the file is its command, commit and date. Labels go through the label model where they are noisy.
"""

import argparse
import json
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

import numpy as np
from scenarios import CHECKS, GROUPS, KINDS, NOISES, Scenario, scenarios, source_posterior

from tllib_ext.io import write_text
from tllib_ext.target import TargetModel, estimate_target

__all__ = ["record_of", "summary"]


def record_of(scenario: Scenario, model: TargetModel) -> Dict[str, Any]:
    """Metrics of the model's decisions, and what it says of the share of unknown."""
    report = scenario.evaluate(model.posterior)
    record = dict(group=scenario.group, task=scenario.task, kind=scenario.split.scenario, noise=scenario.noise,
                  seed=scenario.seed, images=len(scenario.target), classes=scenario.num_classes)  # fmt: skip
    record.update(os=report.os, h_score=report.h_score, closed_accuracy=report.closed_accuracy, share=model.share)
    low, high = model.share_interval
    return {**record, "low": low, "high": high, "known": model.share_known, "true_share": scenario.unknown_share}


def summary(records: Sequence[Dict[str, Any]]) -> str:
    """Means by group and noise: OS, H-score, classes right with rejection off, and the honesty of the share."""
    lines = [
        f"{'group':16}{'noise':16}{'n':>4}{'OS':>7}{'H':>7}{'classes':>9}{'|error|':>9}{'covered':>9}{'silent':>8}{'needless':>9}"
    ]
    groups = [*dict.fromkeys(r["group"] for r in records), "all"]
    for group in groups:
        of_group = [r for r in records if group in (r["group"], "all")]
        for noise in [*dict.fromkeys(r["noise"] for r in of_group), "all"]:
            lines.append(_line(group, noise, [r for r in of_group if noise in (r["noise"], "all")]))
    return "\n".join(lines)


def _line(group: str, noise: str, records: Sequence[Dict[str, Any]]) -> str:
    def mean(values: Iterable[Any]) -> float:
        found: List[float] = [float(value) for value in values if value is not None]
        return 100 * float(np.mean(found)) if found else float("nan")

    error = np.array([abs(r["share"] - r["true_share"]) for r in records])
    known = np.array([r["known"] for r in records])
    cells = [mean(r[name] for r in records) for name in ("os", "h_score", "closed_accuracy")]
    covered = mean(r["low"] <= r["true_share"] <= r["high"] for r in records)
    silent, needless = mean((error > 0.1) & known), mean(~known[error <= 0.1])
    return (f"{group:16}{noise:16}{len(records):4}{cells[0]:7.1f}{cells[1]:7.1f}{cells[2]:9.1f}{100 * error.mean():9.1f}"
            f"{covered:9.1f}{silent:8.1f}{needless:9.1f}")  # fmt: skip


def main() -> None:
    """Run, write, print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the folders of features")
    parser.add_argument("--out", type=Path, required=True, help="file of records, .jsonl")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS + CHECKS)}")
    parser.add_argument("--noises", default=",".join(NOISES), help=f"of {', '.join(NOISES)}")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"label sets, of {', '.join(KINDS)}")
    parser.add_argument("--cache", type=Path, help="folder that keeps what the label model found")
    args = parser.parse_args()
    start, records = time.monotonic(), []
    for scenario in scenarios(args.data, *(getattr(args, name).split(",") for name in ("groups", "noises", "kinds"))):
        records.append(
            record_of(scenario, estimate_target(scenario.source, source_posterior(scenario, args.cache), scenario.target))
        )
        print(f"\r{len(records)} scenarios, {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    command = f"python tools/target_scenarios.py data --groups {args.groups} --noises '{args.noises}' --kinds {args.kinds}"
    first = dict(command=f"{command} --out {args.out}", commit=commit, date=datetime.now(timezone.utc).date().isoformat())
    write_text(args.out, "".join(json.dumps(line) + "\n" for line in (first, *records)))
    print("\n" + summary(records))


if __name__ == "__main__":
    main()
