"""Run ten steps of every method on the device at hand, compare them with the CPU, print speed, memory and what to set.

    {prog}                              every method; under a minute on an idle CPU
    {prog} --device cuda --json gpu.json     the same, with ResNet-50 at 224 px timed; send the file with a report
    {prog} -m divergence,credo -b 18         another batch

The comparison is small_cnn at 32 px in fp32, without dropout. On a GPU a second part times --arch in --precision. Exit
code 1: a method failed, or differs from the CPU by more than rounding.
"""

import json
import os
import platform
from typing import TYPE_CHECKING, List, Optional, Sequence

from tllib_ext.cli.grid_axes import parse_methods
from tllib_ext.cli.parser import Parser, add_settings, parse_settings
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import settings_of
from tllib_ext.typing import Record

if TYPE_CHECKING:
    import torch

    from tllib_ext.training.doctor import Examined, Workload

__all__ = ["main"]

_USED = ("arch", "train_from", "image_size", "batch_size", "precision", "checkpoint_activations", "device")


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext doctor") -> int:
    """Examine every method and print the report."""
    parser = Parser(prog=prog, description=(__doc__ or "").replace("{prog}", prog))
    known = {name: setting for name, setting in settings_of(RunConfig).items() if name in _USED}
    add_settings(parser, RunConfig, [name for name in settings_of(RunConfig) if name not in _USED])
    parser.add_argument("-m", "--methods", default="all", metavar="LIST", help="names; default: all of this package")
    parser.add_argument("--json", metavar="FILE", help="write every number there")
    parser.add_help_all()
    values, args = parse_settings(parser, known, argv)
    config, methods = RunConfig(**values), parse_methods(args.methods)
    import torch
    from prettytable import PrettyTable
    from tqdm import tqdm

    from tllib_ext.io import write_text
    from tllib_ext.training.device import pick_device
    from tllib_ext.training.doctor import TOLERANCE, Workload, examine

    device, cpu = pick_device(config.device), torch.device("cpu")
    machine = _machine(device)
    print("\n".join(f"{name:<9} {value}" for name, value in machine.items()))
    timed = None
    if device.type != "cpu" or config.arch:
        timed = Workload(config.arch or "resnet50", config.image_size or 224, config.batch_size, 10, config.precision,
                         config.checkpoint_activations, config.train_from or "all")  # fmt: skip
    rows: List[Record] = []
    columns = ["method", "difference", "ms per step", *(["images/s", "memory"] if timed else []), ""]
    table = PrettyTable(columns, align="r")
    table.align["method"] = table.align[""] = "l"
    for name in tqdm(methods, leave=False, disable=None):
        small = examine(name, device, Workload(), cpu)
        large = examine(name, device, timed) if timed and small.error is None else None
        rows.append({"method": name, "small": small.record(), "timed": None if large is None else large.record()})
        table.add_row(_row(small, large, timed))
    print(table)
    bad = [row["method"] for row in rows if not row["small"]["agrees"] or (row["timed"] and row["timed"]["error"])]
    reference = "the CPU" if device.type != "cpu" else "PyTorch's own kernels in place of oneDNN's"
    print(f"difference: of a loss (relative) or of a mean probability from {reference}; up to {TOLERANCE:g} is rounding")
    print(*_advice(device, rows, timed), sep="\n")
    if args.json:
        write_text(args.json, json.dumps({"machine": machine, "timed": timed and vars(timed), "methods": rows}, indent=1) + "\n")
    print(f"problems: {', '.join(bad)}" if bad else f"all {len(rows)} methods work on {device}")
    return 1 if bad else 0


def _row(small: "Examined", large: "Optional[Examined]", timed: "Optional[Workload]") -> List[str]:
    shown, size = large or small, 2 * (timed.batch if timed else 0)
    text = small.error or (large and large.error) or ("" if small.agrees else "differs")
    more = ["", ""] if timed else []
    if large and large.seconds:
        memory = "" if large.memory is None else f"{large.memory / 1e9:.1f} GB"
        more = [f"{size / large.seconds:.0f}", memory]
    difference = "" if small.difference is None else f"{small.difference:.0e}"
    return [small.method, difference, "" if shown.seconds is None else f"{1000 * shown.seconds:.1f}", *more, str(text)[:90]]


def _machine(device: "torch.device") -> Record:
    import torch

    from tllib_ext import __version__

    found = {"package": f"tllib_ext {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
             "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
             "device": str(device)}  # fmt: skip
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found["device"] = f"{card.name}, {card.total_memory / 1e9:.1f} GB, capability {card.major}.{card.minor}"
        found["CUDA"] = f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    elif not torch.cuda.is_available() and device.type == "cpu":
        found["device"] = "cpu (PyTorch finds no GPU)"
    return found


def _advice(device: "torch.device", rows: Sequence[Record], timed: "Optional[Workload]") -> List[str]:
    """What to set, in lines."""
    import torch

    from tllib_ext.experiments.cards import needed
    from tllib_ext.training.compile import why_not
    from tllib_ext.training.precision import Precision

    workers = f"-j {min(8, os.cpu_count() or 1)}"
    need = max((needed(RunConfig(method=row["method"]), "V100") for row in rows), key=lambda need: need.memory)
    if device.type != "cuda":
        return [f"set: --train-from head, or tllib-ext features once and -d features: minutes on a CPU; {workers}",
                "to train the last stage of a ResNet: --train-from layer4 (docs/training.md)",
                f"a GPU for ResNet-50, 36 + 36 images, needs {need.memory:.1f} GB in fp32, {need.checkpointed:.1f} GB with "
                "--checkpoint-activations"]  # fmt: skip
    total = torch.cuda.get_device_properties(device).total_memory / 1e9
    words = [f"--precision {Precision('auto', device).name} (auto)", workers]
    words += ["--checkpoint-activations"] if need.memory > 0.95 * total else []
    reason = why_not(device)
    words += ["--compile for long runs" if reason is None else f"no --compile: {reason}"]
    return [f"set: {', '.join(words)}"]
