"""Measure this package against a longhand loop in the order of the authors' code, on this machine.

    python examples/benchmark.py                                       the step and its ablation, about ten minutes on two cores
    python examples/benchmark.py step --arch mobilenet_v2              one part, one network
    python examples/benchmark.py data --root data/office31             the data pipeline, on photographs
    python examples/benchmark.py step --device cuda --arch resnet50 --size 224 --batch-size 36 --precision bf16

Parts: step (an iteration of the paper's method), ablation (the step with each optimisation switched off), data (images per
second). Every side runs in a process of its own, all are timed in turn, and the median of the rounds counts.
"""

import argparse
import json
import shlex
import sys
from datetime import date
from pathlib import Path
from typing import Any, Dict, List

from tllib_ext.cli.parser import Parser, argument, run_main
from tllib_ext.errors import UserError, closest
from tllib_ext.training.setting import COUNT, WORKERS

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "docs" / "performance.json", ROOT / "docs" / "performance.md"
Rows = List[Dict[str, Any]]


def parse() -> argparse.Namespace:
    """Parse the flags."""
    parser = Parser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all, data with --root only")
    parser.add_argument("--arch", default="mobilenet_v2,resnet18,features", help="networks, by commas (%(default)s)")
    parser.add_argument("--size", type=argument(COUNT), default=128, help="side of the step's images (%(default)s)")
    parser.add_argument("-b", "--batch-size", type=argument(COUNT), help="images per domain (12; 36 for features)")
    parser.add_argument("--device", default="cpu", help="of step: cpu, cuda, cuda:1 … (%(default)s)")
    parser.add_argument("--precision", default="fp32", help="of this package's step: fp32, tf32, bf16, fp16 (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="time this package's step compiled too")
    parser.add_argument("--threads", type=argument(WORKERS), default=0, help="PyTorch threads; 0 for its default (%(default)s)")
    parser.add_argument("--repeats", type=argument(COUNT), default=7, help="timings of each side (%(default)s)")
    parser.add_argument("--root", type=Path, help="Office-31 in tllib's layout, for data")
    parser.add_argument("--quick", action="store_true", help="tiny inputs and one timing, to test the script")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    parser.add_argument("--record", action="store_true", help="update docs/performance.json and docs/performance.md")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            raise UserError(f"unknown part {part!r}: {closest(part, PARTS)}")
    if args.root is not None and not (args.root / "dslr").is_dir():
        raise UserError(f"no folder {args.root / 'dslr'}: --root takes Office-31 with amazon/images/…, dslr/images/…")
    return args


def workload(args: argparse.Namespace, arch: str) -> Dict[str, Any]:
    """Inputs of a network's step, and how many iterations to time at once."""
    features = arch == "features"
    steps = 1 if args.quick else 50 if features else 2 if args.device == "cpu" else 20
    return dict(arch=arch, px=32 if args.quick else args.size, batch=args.batch_size or (36 if features else 12),
                device=args.device, threads=args.threads, repeats=args.repeats, steps=steps)  # fmt: skip


def step(args: argparse.Namespace) -> Rows:
    """The training step, by network."""
    import torch
    from benchmark.compare import compare_parameters, compare_steps

    from tllib_ext.training.compile import why_not

    if args.compile and (reason := why_not(torch.device(args.device))):
        raise UserError(f"--compile does not work here: {reason}")
    rows = []
    for arch in args.arch.split(","):
        work = workload(args, arch)
        check = dict(px=min(work["px"], 64), batch=work["batch"] if arch == "features" else min(work["batch"], 6))
        for row in compare_steps(**work, compile=args.compile, precision=args.precision):
            check.update(arch=arch, device=args.device, threads=args.threads, compile=row["compile"])
            rows.append({**row, **compare_parameters(**check)})
    return rows


def ablation(args: argparse.Namespace) -> Rows:
    """The training step without each optimisation for CPUs, by network."""
    from benchmark.compare import ablate_steps

    return [row for arch in args.arch.split(",") if arch != "features" for row in ablate_steps(**workload(args, arch))]


def data(args: argparse.Namespace) -> Rows:
    """Both data pipelines."""
    from benchmark.compare import compare_data

    if args.root is None:
        raise UserError("data needs --root DIR, Office-31 with amazon/images/… and dslr/images/…")
    return compare_data(args.root, args.repeats, **(dict(batches=1, batch=4) if args.quick else {}))


PARTS = {"step": step, "ablation": ablation, "data": data}


def main() -> int:
    args = parse()
    if args.quick:
        args.repeats = 1
    from benchmark.page import machine, tables, write_page

    from tllib_ext.io import write_json

    # The record holds the command without this machine's folders.
    words = ["DIR" if Path(word) == args.root else word for word in sys.argv[1:] if word != "--record"]
    command = shlex.join(["python", "examples/benchmark.py", *words])
    record: Dict[str, Any] = {}
    for part in args.parts or [part for part in PARTS if part != "data" or args.root]:
        made = {"command": command, "date": str(date.today()), "machine": machine(args.device)}
        made["machine"]["threads"] = args.threads or made["machine"]["threads"]
        record[part] = {**made, "rows": PARTS[part](args)}
        print(tables({part: record[part]}), flush=True)
    if args.json is not None:
        write_json(args.json, record)
    if args.record:
        kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
        write_json(RECORD, {**kept, **record})
        write_page(PAGE, {**kept, **record})
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
