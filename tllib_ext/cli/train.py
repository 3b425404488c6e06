"""``train``: one run from flags to files."""

import argparse
from contextlib import closing
from pathlib import Path

from tllib_ext.cli.allocator import keep_freed_memory
from tllib_ext.distributed import start
from tllib_ext.errors import UserError
from tllib_ext.report.page import write_report
from tllib_ext.training.build import build, make_deterministic
from tllib_ext.training.checkpoint import load_method, load_model
from tllib_ext.training.console import hparams_table
from tllib_ext.training.predict import evaluate_domain
from tllib_ext.training.trainer import train

__all__ = ["run_from_args"]


def run_from_args(args: argparse.Namespace) -> int:
    """What ``examples/noisy_unida.py`` does after parsing."""
    if args.list_hp:
        print(hparams_table(args))
        return 0
    args.device = start(args.device)
    if args.deterministic:
        make_deterministic()
    if args.phase == "test":
        return _test(args)
    keep_freed_memory()
    train(build(args), write_report)
    return 0


def _test(args: argparse.Namespace) -> int:
    """Evaluate the model of a run folder on the target again."""
    if args.log is None:
        raise UserError("--phase test needs the run: --log FOLDER")
    metadata, tensors, _ = load_model(Path(args.log) / "model.safetensors")
    args.method = metadata["method"]
    args.hp = [f"{name}={value}" for name, value in metadata["hparams"].items()]
    with closing(build(args)) as parts:
        load_method(parts.method, tensors, args.log)
        _, report = evaluate_domain(parts.method, parts.target)
    print("the target is unlabelled" if report is None else report.table())
    return 0
