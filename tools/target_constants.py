"""What half and double of every constant of the target model cost, on the development scenarios with clean labels and seed 0.

    python tools/target_constants.py data --out records/target_constants.jsonl

The first line of the file is its command, commit and date; then one line a value: OS and H-score, means of the groups' means.
"""

import argparse
import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple
from unittest.mock import patch

import numpy as np
from scenarios import GROUPS, Scenario, scenarios, source_posterior

from tllib_ext.io import write_text
from tllib_ext.target import embedding, estimate_target, graph, mixture

#: module, name and what half and double of it mean.
CONSTANTS: Tuple[Tuple[Any, str], ...] = (
    (embedding, "_WIDTH"), (embedding, "_SHRINKAGE"), (embedding, "_ENOUGH"), (graph, "NEIGHBOURS"), (graph, "TEMPERATURE"),
    (graph, "POWERS"), (graph, "AMBIGUITY"), (mixture, "TEMPERATURE"), (mixture, "TIE"), (mixture, "ROUNDS"),
)  # fmt: skip


def times(value: Any, factor: float) -> Any:
    """A constant times a factor: every number of a tuple, whole numbers stay whole."""
    if isinstance(value, tuple):
        return tuple(times(part, factor) for part in value)
    return max(int(round(value * factor)), 1) if isinstance(value, int) else value * factor


def measured(chosen: List[Tuple[Scenario, np.ndarray]]) -> Dict[str, float]:
    """OS and H-score: means of the groups' means."""
    found: Dict[str, List[Tuple[float, Any]]] = {}
    for scenario, posterior in chosen:
        report = scenario.evaluate(estimate_target(scenario.source, posterior, scenario.target).posterior)
        found.setdefault(scenario.group, []).append((report.os, report.h_score))
    h_scores = [np.mean([h for _, h in values if h is not None]) for values in found.values()]
    return {
        "os": float(np.mean([np.mean([o for o, _ in values]) for values in found.values()])),
        "h_score": float(np.mean(h_scores)),
    }


def rows(data: Path) -> Iterator[Dict[str, Any]]:
    """The model as it is, then every constant at half and at double."""
    chosen = [(s, source_posterior(s)) for s in scenarios(data, GROUPS, ("clean",), seeds=(0,))]
    yield {"constant": "as it is", **measured(chosen)}
    for module, name in CONSTANTS:
        value = getattr(module, name)
        for factor in (0.5, 2.0):
            changed = min(times(value, factor), 0.99) if name == "_SHRINKAGE" else times(value, factor)
            with patch.object(module, name, changed), patch.object(graph.Graph.__init__, "__defaults__", (graph.NEIGHBOURS,)):
                label = f"{module.__name__.rpartition('.')[2]}.{name}"
                yield {"constant": label, "is": value, "factor": factor, "value": changed, **measured(chosen)}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the folders of features")
    parser.add_argument("--out", type=Path, required=True, help="file of records, .jsonl")
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    lines: List[Dict[str, Any]] = [{"command": f"python tools/target_constants.py data --out {args.out}", "commit": commit,
                                    "date": datetime.now(timezone.utc).date().isoformat()}]  # fmt: skip
    for row in rows(args.data):
        lines.append(row)
        print(*row.values(), flush=True)
    write_text(args.out, "".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
