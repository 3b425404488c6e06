"""``tllib-ext select RUN…``: rank finished runs without target labels."""

import argparse
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
from prettytable import PrettyTable

from tllib_ext.cli.parser import output_file, run_main
from tllib_ext.errors import UserError, one_line
from tllib_ext.evaluation.run_records import read_evaluations
from tllib_ext.evaluation.validators import VALIDATORS, rank_correlation, ranks
from tllib_ext.io import write_json
from tllib_ext.typing import Record

__all__ = ["find_runs", "main", "select"]


def find_runs(places: Sequence[Path]) -> List[Path]:
    """The folders of finished runs among ``places`` and below them, each once, in order."""
    found: List[Path] = []
    for place in places:
        below = sorted(file.parent for file in place.rglob("results.json")) if place.is_dir() else []
        if not below:
            raise UserError(f"there is no finished run in {place}: expected results.json in it or below it")
        found += below
    return list(dict.fromkeys(found))


def select(folders: Sequence[Path], metric: str = "os") -> Record:
    """Rank runs by the validators of their last evaluation.

    Returns:
        ``runs``: name, validators, their mean rank and the metric of every run, best mean rank first; ``correlation``:
        Spearman's correlation of every validator's order, and of the mean rank's, with the metric
    """
    runs: List[Record] = []
    for folder in folders:
        lines = read_evaluations(folder / "results.jsonl", [metric, *VALIDATORS])
        last = lines[-1] if lines else {}
        runs.append({"run": str(folder), metric: last.get(metric), **{name: last.get(name) for name in VALIDATORS}})
    names = [name for name in VALIDATORS if any(run[name] is not None for run in runs)]
    if not names:
        raise UserError("none of these runs has validators: an earlier release made them, train again")
    table = np.stack([ranks(name, [run[name] for run in runs]) for name in names])
    # A validator that some runs do not have cannot compare them with the others.
    whole = ~np.isnan(table).any(axis=1)
    mean = table[whole].mean(axis=0) if whole.any() else np.full(len(runs), np.nan)
    values = [run[metric] for run in runs]
    correlation = {name: rank_correlation(place, values) for name, place in zip(names, table)}
    correlation["mean rank"] = rank_correlation(mean, values)
    for run, place in zip(runs, mean):
        run["mean rank"] = None if np.isnan(place) else float(place)
    order = np.argsort(mean, kind="stable")
    return {"runs": [runs[i] for i in order], "validators": names, "correlation": correlation, "metric": metric}


def _show(result: Record, by: str) -> str:
    names, metric = result["validators"], result["metric"]
    runs = result["runs"]
    if by != "mean rank":
        place = ranks(by, [run[by] for run in runs])
        runs = [runs[i] for i in np.argsort(place, kind="stable")]
    table = PrettyTable(["run", *names, "mean rank", metric], align="l")
    for run in runs:
        table.add_row([one_line(run["run"]), *(_number(run[name]) for name in (*names, "mean rank", metric))])
    known = [result["correlation"][name] for name in (*names, "mean rank")]
    table.add_row([f"rank correlation with {metric}", *map(_number, known), ""])
    lines = [f"{name}: {VALIDATORS[name].definition}; {'high' if VALIDATORS[name].higher_is_better else 'low'} is better"
             for name in names]  # fmt: skip
    return "\n".join([table.get_string(), *lines, f"first by {by}: {one_line(runs[0]['run'])}"])


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3f}"


def main(argv: Optional[List[str]] = None) -> int:
    """Print the runs in order, and how well each validator's order agrees with the metric where labels exist."""
    parser = argparse.ArgumentParser(prog="tllib-ext select", description="Rank finished runs without target labels.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders")
    parser.add_argument("--by", default="mean rank", metavar="NAME", help=f"{', '.join(VALIDATORS)}; default: the mean rank")
    parser.add_argument(
        "--metric", default="os", metavar="NAME", help="compare with this metric where labels exist (default: os)"
    )
    parser.add_argument("--json", type=output_file, metavar="OUT", help="write the table there too")
    args = parser.parse_args(argv)
    by = args.by if args.by in ("mean rank", *VALIDATORS) else f"val_{args.by}"
    if by not in ("mean rank", *VALIDATORS):
        parser.error(f"unknown validator {args.by!r}: expected one of {', '.join(VALIDATORS)}")

    def run() -> None:
        result = select(find_runs(args.runs), args.metric)
        if by != "mean rank" and by not in result["validators"]:
            raise UserError(f"none of these runs has {by}: choose one of {', '.join(result['validators'])}")
        if args.json is not None:
            write_json(args.json, result)
        print(_show(result, by))

    return run_main(run)
