"""``python -m tllib_ext.evaluation predictions.csv``: recompute every metric from a file."""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import List, Optional

from tllib_ext.errors import UserError, run_main
from tllib_ext.evaluation.files import load_split, read_predictions
from tllib_ext.evaluation.further import FURTHER
from tllib_ext.io import write_json
from tllib_ext.split import LabelSplit

__all__ = ["main"]


def parser(prog: str = "python -m tllib_ext.evaluation") -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog=prog,
        description="Recompute every open-set metric from a predictions file. The label sets come from config.json "
        "beside it, or from --split-file, or from --shared and --source-private.",
    )
    p.add_argument("file", type=Path, metavar="predictions.csv", help="columns index, label, predicted, score, top1")
    p.add_argument("--threshold", type=float, metavar="X", help="predict unknown where score > X, else top1")
    p.add_argument("--all", action="store_true", help="also the further metrics of other papers, and 95 %% intervals")
    p.add_argument("--json", metavar="OUT", help="write the metrics, recalls and confusion matrix there too")
    split = p.add_argument_group("label sets")
    split.add_argument("--split-file", type=Path, metavar="JSON", help='a file with the key "split", as config.json')
    split.add_argument("--shared", metavar="A,B,…", help="names of the shared classes")
    split.add_argument("--source-private", metavar="C,…", help="names of the classes only the source has")
    split.add_argument("--target-private", metavar="D,…", help="names in the label column that mean unknown")
    return p


def main(argv: Optional[List[str]] = None, prog: str = "python -m tllib_ext.evaluation") -> int:
    """Print the table; returns the exit code, 2 after one line on bad input."""
    return run_main(partial(_evaluate, parser(prog).parse_args(argv)))


def _evaluate(args: argparse.Namespace) -> None:
    split = _split(args)
    predictions = read_predictions(args.file, split, only_metrics=not args.all)
    if args.shared and not args.target_private and (predictions.label == split.unknown).any():
        split = replace(split, target_private=("unknown",))
    report = predictions.evaluate(split, args.threshold)
    further = predictions.further(split, args.threshold) if args.all else {}
    if args.json is not None:
        write_json("/dev/stdout" if args.json == "-" else args.json, {**report.to_dict(), **further})
    rule = "as predicted" if args.threshold is None else f"predicted unknown where score > {args.threshold}"
    unlabelled = int((~predictions.labelled).sum())
    left_out = f"; {unlabelled} rows without a label left out" if unlabelled else ""
    lines = [f"{name:<32}{value:.4f}  {FURTHER.get(name, '')}".rstrip() for name, value in further.items() if value is not None]
    print(report.table(), *lines, f"{args.file}: {len(predictions.index)} rows, {rule}{left_out}", sep="\n")


def _split(args: argparse.Namespace) -> LabelSplit:
    if args.shared:
        if args.split_file:
            raise UserError("give --split-file or --shared, not both")
        given = (args.shared, args.source_private or "", args.target_private or "")
        return LabelSplit(*(tuple(name.strip() for name in text.split(",") if name.strip()) for text in given))
    if args.source_private or args.target_private:
        raise UserError("--source-private and --target-private need --shared A,B,…")
    if not args.file.is_file():
        raise UserError(f"there is no predictions file {args.file}")
    beside = args.split_file or args.file.with_name("config.json")
    if not beside.is_file():
        raise UserError(f"there is no {beside} with the label sets: give --split-file JSON or --shared A,B,…")
    return load_split(beside)


if __name__ == "__main__":
    sys.exit(main())
