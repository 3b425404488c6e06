"""Time this package's training step against a longhand loop in the order of the authors' code, on this machine.

    python examples/benchmark.py                                       all parts, about ten minutes on two cores
    python examples/benchmark.py step --arch mobilenet_v2 --compile    one part, one network, with torch.compile too
    python examples/benchmark.py stages --arch resnet50 --size 224 --batch-size 36 --repeats 3
    python examples/benchmark.py step --device cuda --arch resnet50 --size 224 --batch-size 36 --precision bf16

Parts: step (an iteration of the paper's method), ablation (the same on a CPU with optimisations switched off), stages (two
methods on a CPU from the last stage of the network, from its frozen features and as a whole). Every side runs in a process of
its own, all are timed in turn, and the median of the rounds counts.
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


def parse() -> argparse.Namespace:
    """Parse the flags."""
    parser = Parser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--arch", default="mobilenet_v2,resnet18,features", help="networks, by commas (%(default)s)")
    parser.add_argument("--size", type=argument(COUNT), default=128, help="side of the images (%(default)s)")
    parser.add_argument("-b", "--batch-size", type=argument(COUNT), help="images per domain (12; 36 for features)")
    parser.add_argument("--methods", default="divergence,credo", help="of stages: names of methods, by commas (%(default)s)")
    parser.add_argument("--device", default="cpu", help="of step: cpu, cuda, cuda:1 … (%(default)s)")
    parser.add_argument("--precision", default="fp32", help="of this package's step: fp32, tf32, bf16, fp16 (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="time this package's step compiled too")
    parser.add_argument("--threads", type=argument(WORKERS), default=0, help="PyTorch threads; 0 for its default (%(default)s)")
    parser.add_argument("--repeats", type=argument(COUNT), default=7, help="timings of each side (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny inputs and one timing, to test the script")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    parser.add_argument("--record", action="store_true", help="update docs/performance.json and docs/performance.md")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            raise UserError(f"unknown part {part!r}: {closest(part, PARTS)}")
    return args


def workload(args: argparse.Namespace, arch: str) -> Dict[str, Any]:
    """Inputs of a network's step, and how many iterations to time at once."""
    features = arch == "features"
    steps = 1 if args.quick else 50 if features else 2 if args.device == "cpu" else 20
    return dict(arch=arch, px=32 if args.quick else args.size, batch=args.batch_size or (36 if features else 12),
                device=args.device, threads=args.threads, repeats=1 if args.quick else args.repeats, steps=steps)  # fmt: skip


def step(args: argparse.Namespace, arch: str) -> List[Dict[str, Any]]:
    """The longhand loop against this package."""
    from benchmark.compare import compare_parameters, compare_steps

    work = workload(args, arch)
    check = dict(arch=arch, px=min(work["px"], 64), batch=work["batch"] if arch == "features" else min(work["batch"], 6),
                 device=args.device, threads=args.threads)  # fmt: skip
    rows = compare_steps(**work, compile=args.compile, precision=args.precision)
    return [{**row, **compare_parameters(row["compile"], **check)} for row in rows]


def ablation(args: argparse.Namespace, arch: str) -> List[Dict[str, Any]]:
    """This package with optimisations switched off."""
    from benchmark.compare import ablate_steps

    return ablate_steps(**workload(args, arch)) if arch != "features" else []


def stages(args: argparse.Namespace, arch: str) -> List[Dict[str, Any]]:
    """Frozen features, the last stage, the whole network."""
    from benchmark.stages import LAST_STAGE, compare_stages

    last = next((stage for start, stage in LAST_STAGE.items() if arch.startswith(start)), None)
    if last is None:
        return []
    work = workload(args, arch)
    del work["device"]
    return compare_stages(**{**work, "steps": 1}, methods=args.methods.split(","), stages=("head", last, "all"))


PARTS = {"step": step, "ablation": ablation, "stages": stages}


def main() -> int:
    args = parse()
    from benchmark.page import machine, tables, write_page

    from tllib_ext.io import write_json

    command = shlex.join(["python", "examples/benchmark.py", *(word for word in sys.argv[1:] if word != "--record")])
    record: Dict[str, Any] = {}
    for part in args.parts or PARTS:
        entry = {"command": command, "date": str(date.today()), "machine": machine(args.device, args.threads)}
        record[part] = {**entry, "rows": [row for arch in args.arch.split(",") for row in PARTS[part](args, arch)]}
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
