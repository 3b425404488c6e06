"""Train and evaluate a method for noisy universal domain adaptation.

    {prog}                                            embedded glyphs, about a minute
    {prog} data/office31 -s A -t D --noise pair --rate 0.2
    {prog} data/office31 -s A -t D --noise pair -a mobilenet_v2 --freeze-backbone
    {prog} my_photos -s labelled -t new -m mixture --freeze-backbone --log runs/my_run

The last one is for own folders, the target unlabelled (docs/own_data.md); -m credo trains.
The last line of the log names the run's files. Numbers are of the last step; the best step on target labels appears
only under the name oracle.
"""

from dataclasses import replace
from pathlib import Path
from typing import Optional, Sequence

from tllib_ext.cli.parser import Parser, add_run_arguments, parse_settings
from tllib_ext.errors import UserError
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import settings_of

__all__ = ["main", "make_parser"]


def make_parser(prog: str = "tllib-ext train") -> Parser:
    """The flags of one run, and those of this command alone."""
    text = (__doc__ or "").replace("{prog}", prog)
    parser = Parser(prog=prog, usage=f"{prog} [DIR] [flags]", description=text)
    add_run_arguments(parser)
    parser.add_argument("--list-hp", action="store_true", help="print the method's hyper-parameters, and stop")
    parser.add_argument(
        "--phase", choices=["train", "test"], default="train", help="test: evaluate the model in --log FOLDER again"
    )
    return parser


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext train") -> int:
    """Parse the flags, then train (or test) one run."""
    values, args = parse_settings(make_parser(prog), settings_of(RunConfig), argv)
    config = RunConfig(**values)
    if args.list_hp:
        from tllib_ext.training.console import hparams_table

        print(hparams_table(config))
        return 0
    if args.phase == "test":
        return _test(config)
    from tllib_ext.api import train
    from tllib_ext.training.allocator import keep_freed_memory

    keep_freed_memory()
    train(config)
    return 0


def _test(config: RunConfig) -> int:
    """Evaluate the model of a run folder on the target again."""
    from tllib_ext.distributed import start
    from tllib_ext.methods import METHODS
    from tllib_ext.training.build import build
    from tllib_ext.training.checkpoint import load_method, load_model
    from tllib_ext.training.predict import evaluate_domain

    if config.log is None:
        raise UserError("--phase test needs the run: --log FOLDER")
    metadata, tensors, _ = load_model(Path(config.log) / "model.safetensors")
    # a model file does not choose what is imported, unless the same path is given as a flag
    METHODS.get(metadata["method"], import_paths=metadata["method"] == config.method)
    config = replace(config, method=metadata["method"], hparams=metadata["hparams"], device=start(config.device))
    parts = build(config)
    load_method(parts.method, tensors, config.log)
    _, report = evaluate_domain(parts.method, parts.target)
    print("the target is unlabelled" if report is None else report.table())
    return 0
