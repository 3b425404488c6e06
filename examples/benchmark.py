"""How fast is it? This package against a plain loop in the authors' order, each measured in turn in the same run.

    python examples/benchmark.py                                       everything, about ten minutes on two cores
    python examples/benchmark.py step --arch mobilenet_v2              one part, one network
    python examples/benchmark.py data eval --root data/office31        on photographs (default: generated JPEG files)
    python examples/benchmark.py step --device cuda --arch resnet50 --size 224 --batch-size 36 --precision bf16
    python examples/benchmark.py scale                                 a list of a million lines, many classes, processes
    python examples/benchmark.py switches --features data/office31_resnet50       do the fast ways find the same?

Parts: step (an iteration of the paper's method), data (images per second), eval (an evaluation), scale (what grows with what),
switches (OS of whole runs with and without --compile and several processes; only with --features).
Every side runs in a process of its own, all are asked in turn; the median of the rounds counts. Ratio above one: we are faster.
"""

import argparse
import json
import shlex
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any, Dict, List

from tllib_ext.cli.parser import Parser, argument, run_main
from tllib_ext.errors import UserError, closest
from tllib_ext.training.setting import COUNT, WORKERS

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "docs" / "performance.json", ROOT / "docs" / "performance.md"
PARTS = ("step", "data", "eval", "scale", "switches")


def parse() -> Any:
    """The flags."""
    parser = Parser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all that can be")
    parser.add_argument("--arch", default="mobilenet_v2,resnet18,features", help="networks of the step, by commas (%(default)s)")
    parser.add_argument("--size", type=argument(COUNT), default=128, help="side of the step's images (%(default)s)")
    parser.add_argument("-b", "--batch-size", type=argument(COUNT), help="images per domain (12; 36 for features)")
    parser.add_argument("--device", default="cpu", help="of step and eval: cpu, cuda, cuda:1 … (%(default)s)")
    parser.add_argument("--precision", default="fp32", help="of our side: fp32, tf32, bf16, fp16 (%(default)s)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="our step compiled too (default: on a CPU)")
    parser.add_argument("--threads", type=argument(WORKERS), default=0, help="of PyTorch; 0 leaves it alone (%(default)s)")
    parser.add_argument("--repeats", type=argument(COUNT), default=7, help="timings of each side (%(default)s)")
    parser.add_argument("--root", type=Path, help="Office-31 in tllib's layout, for data and eval")
    parser.add_argument("--features", type=Path, help="features of Office-31, amazon.npz and others, for switches")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one timing: to see that it works")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    parser.add_argument("--record", action="store_true", help="add to docs/performance.json and write docs/performance.md anew")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            raise UserError(f"unknown part {part!r}: {closest(part, PARTS)}")
    if args.root is not None and not (args.root / "dslr").is_dir():
        raise UserError(f"no folder {args.root / 'dslr'}: --root takes Office-31 with amazon/images/…, dslr/images/…")
    if args.features is None and "switches" in args.parts:
        raise UserError("switches needs --features DIR, the features of Office-31: amazon.npz, dslr.npz")
    if args.features is not None and not (args.features / "amazon.npz").is_file():
        raise UserError(f"no file {args.features / 'amazon.npz'}: --features takes the folder of amazon.npz, dslr.npz")
    args.parts = args.parts or [part for part in PARTS if part != "switches" or args.features is not None]
    return args


def step(args: Any) -> Dict[str, List[Dict[str, Any]]]:
    """The training step, by network."""
    import torch
    from benchmark.contests import compare_parameters, compare_steps

    from tllib_ext.training.compile import why_not

    device = torch.device(args.device)
    compile = device.type == "cpu" if args.compile is None else args.compile
    if compile and (reason := why_not(device)):
        print(f"nothing can be compiled here: {reason}", file=sys.stderr)
        compile = False
    rows = []
    for arch in args.arch.split(","):
        features = arch == "features"
        batch = args.batch_size or (36 if features else 12)
        scene = dict(px=32 if args.quick else args.size, batch=batch, device=args.device, threads=args.threads)
        # Features take milliseconds: many iterations in a timing. The first network steps of a CPU take seconds.
        length = 1 if args.quick else 50 if features else 2 if args.device == "cpu" else 20
        check = {**scene, "px": min(scene["px"], 64), "batch": batch if features else min(batch, 6)}
        for row in compare_steps(arch, args.repeats, length, compile, args.precision, **scene):
            rows.append({**row, **compare_parameters(arch, compile=row["compile"], **check)})
    return {"step": rows}


def data(args: Any) -> Dict[str, List[Dict[str, Any]]]:
    """Both data pipelines."""
    from benchmark.contests import compare_data

    sizes = dict(batches=1, limit=8, batch=4) if args.quick else dict(batches=2, limit=300)
    return {"data": compare_data(args.root, args.repeats, threads=args.threads, **sizes)}


def evaluate(args: Any) -> Dict[str, List[Dict[str, Any]]]:
    """Both evaluations."""
    from benchmark.contests import compare_evaluations

    arch = next((name for name in args.arch.split(",") if name != "features"), "mobilenet_v2")
    scene = dict(px=32 if args.quick else args.size, device=args.device, threads=args.threads)
    return {"eval": compare_evaluations(args.root, arch, min(args.repeats, 5), 6 if args.quick else 72, **scene)}


def scale(args: Any) -> Dict[str, List[Dict[str, Any]]]:
    """What grows with the lists, the classes and the processes."""
    from benchmark.scale import evaluation, start_up, steps_by_classes, steps_by_processes

    sizes = [200, 400] if args.quick else [10_000, 100_000, 1_000_000]
    with tempfile.TemporaryDirectory() as folder:
        return {"start_up": start_up(Path(folder), sizes), "metrics": evaluation(sizes),
                "classes": steps_by_classes([20] if args.quick else [20, 200, 2000], min(args.repeats, 5), threads=1),
                "processes": steps_by_processes([1, 2], 2 if args.quick else 60)}  # fmt: skip


def switches(args: Any) -> Dict[str, List[Dict[str, Any]]]:
    """What whole runs find with and without each switch."""
    from benchmark.switches import compare_switches

    seeds, steps = ([0], 2) if args.quick else ([0, 1, 2], 1000)
    return {"switches": compare_switches(args.features, seeds, steps)}


def command(args: Any) -> str:
    """What was typed, without where the photographs are on this machine."""
    places = {str(args.root): "DIR", str(args.features): "FEATURES"}
    words = [places.get(str(Path(word)), word) for word in sys.argv[1:]]
    return shlex.join(["python", "examples/benchmark.py", *(word for word in words if word != "--record")])


def main() -> int:
    args = parse()
    if args.quick:
        args.repeats = 1
    from benchmark.page import machine, tables, write_page

    from tllib_ext.io import write_json

    run = {"step": step, "data": data, "eval": evaluate, "scale": scale, "switches": switches}
    record: Dict[str, Any] = {}
    for part in args.parts:
        made = {"command": command(args), "date": str(date.today()), "machine": machine(args.device)}
        made["machine"]["threads"] = args.threads or made["machine"]["threads"]
        found = {name: {**made, "rows": rows} for name, rows in run[part](args).items()}
        print(tables(found), flush=True)
        record.update(found)
        if args.record:
            kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
            write_json(RECORD, {**kept, **found})
            write_page(PAGE, {**kept, **found})
    if args.json is not None:
        write_json(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
