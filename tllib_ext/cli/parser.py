"""Command-line flags shared by the examples. Imports neither torch nor any method: ``--help`` answers at once."""

import argparse
import math
import sys
from typing import Any, Dict, Iterable, Optional, Sequence

from tllib_ext.errors import UserError, closest, one_line, run_main
from tllib_ext.methods import METHODS

__all__ = ["Parser", "add_run_arguments", "parse_run", "read_yaml", "run_main"]

#: a configuration file is a page of settings, not a data set: characters, and lists within lists.
YAML_LIMIT, YAML_DEPTH = 50_000, 5
#: the largest number of steps, images per batch …, and the largest seed that every generator takes.
COUNT_LIMIT, SEED_LIMIT = 10**9, 2**32 - 1


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, exit code 2."""

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> None:  # type: ignore[override]
        name, found, rest = message.partition("unrecognized arguments: ")
        if found:
            flags = [option for action in self._actions for option in action.option_strings]
            wrong = rest.split()[0]
            message = f"unknown flag {wrong}: {closest(wrong, flags).split('known:')[0] or 'see --help'}"
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number in [0, 1)")
    return value


def _positive(text: str) -> int:
    if not 1 <= int(text) <= COUNT_LIMIT:
        raise argparse.ArgumentTypeError(f"{text[:30]}: expected a whole number, 1 or more, at most {COUNT_LIMIT}")
    return int(text)


def _seed(text: str) -> int:
    if not 0 <= int(text) <= SEED_LIMIT:
        raise argparse.ArgumentTypeError(f"{text[:30]}: expected a whole number, 0 or more, at most {SEED_LIMIT}")
    return int(text)


def _workers(text: str) -> int:
    if not 0 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text[:30]}: expected a whole number, 0 or more, at most 256")
    return int(text)


def _learning_rate(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a positive number")
    return float(text)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise argparse.ArgumentTypeError(f"{text}: expected a number")
    return float(text)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """All flags of one training run, in named groups, with tllib's letters."""
    g = parser.add_argument_group("data")
    g.add_argument("root", nargs="?", metavar="DIR", help="data folder; without it the embedded glyphs are drawn and used")
    g.add_argument(
        "-d",
        "--data",
        default="auto",
        metavar="NAME",
        help="Office31, OfficeHome, VisDA2017 (tllib's layout), tllib:NAME (tllib's own class), Glyphs,\n"
        "folder (DIR/domain/class/image), features (DIR/domain.npz); default: recognised from DIR",
    )
    g.add_argument("-s", "--source", metavar="DOMAIN", help="source: a name, tllib's letter or any beginning (A, amazon, ama)")
    g.add_argument("-t", "--target", metavar="DOMAIN", help="target: the same; without class folders it is unlabelled")
    g.add_argument("--split", metavar="a/b/c", help="shared/source private/target private classes; default: the benchmark's")
    g.add_argument(
        "--target-aug",
        choices=["eval", "train"],
        default="eval",
        help="augmentation of target training images; the authors' code has none in effect (default: eval)",
    )
    g.add_argument(
        "--cache",
        choices=["auto", "off", "ram", "disk"],
        default="auto",
        help="keep decoded images: in memory, or in a file for the next runs too; auto: ram below 1 GiB,\n"
        "disk below 16 GiB where there is room ($TLLIB_EXT_CACHE, default ~/.cache/tllib_ext)",
    )
    g.add_argument("--download", action="store_true", help="allow the network: pretrained weights, and data with -d tllib:NAME")
    g.add_argument("--check", action="store_true", help="open every image before training and list all that cannot be used")
    g.add_argument(
        "--on-bad-image",
        choices=["stop", "skip"],
        default="stop",
        help="stop with exit code 2 (default), or check all and train without them, before noise is drawn",
    )
    g.add_argument("--allow-outside", action="store_true", help="let list files name images outside of DIR")

    g = parser.add_argument_group("label noise (simulated on the source)")
    g.add_argument("--noise", metavar="KIND", help="none, pair, symmetric, or a row-stochastic matrix in a .npy or .csv file")
    g.add_argument("--rate", type=_rate, default=0.2, help="expected share of wrong labels (default: 0.2)")
    g.add_argument(
        "--noise-mode",
        choices=["iid", "exact"],
        default="iid",
        help="iid: the authors' draw, bit for bit; exact: exactly round(rate x n) labels of each class",
    )
    g.add_argument("--noise-seed", type=_seed, default=0, help="seed of the draw, apart from --seed (default: 0)")

    g = parser.add_argument_group("method")
    g.add_argument("-m", "--method", default="divergence", metavar="NAME", help=f"one of: {', '.join(METHODS)}")
    g.add_argument("--preset", metavar="NAME", help="default, code (the authors' released code) or paper (the text, literally)")
    g.add_argument(
        "--hp",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="hyper-parameters of the method, e.g. --hp eta=0.1 n=2; --list-hp lists them",
    )
    g.add_argument("--drop-rate", metavar="RATE", help="share of each source batch to drop as wrongly labelled; default: --rate")
    g.add_argument("--heads", type=_positive, help="number of classifier heads (default: 2)")
    g.add_argument("--unknown-rule", choices=["entropy", "confidence"], help="for methods without a detector of their own")
    g.add_argument("--unknown-threshold", type=_finite, metavar="T", help="of that rule: share of log K, or least confidence")
    g.add_argument("--list-hp", action="store_true", help="print the method's hyper-parameters, and stop")

    g = parser.add_argument_group("backbone")
    g.add_argument(
        "-a",
        "--arch",
        metavar="NAME",
        help="resnet50 (default), other torchvision ResNets, mobilenet_v2, small_cnn, tllib:NAME, timm:NAME",
    )
    g.add_argument("--weights", default="default", metavar="W", help="default (pretrained), none, or a state-dict file")
    g.add_argument("--scratch", action="store_true", help="train from random weights, same as --weights none")
    g.add_argument(
        "--freeze-backbone",
        action="store_true",
        help="extract features once, keep them on disk, train a bottleneck on top: minutes on a laptop",
    )
    g.add_argument("--bottleneck", type=_positive, default=512, help="width of that bottleneck (default: 512)")
    g.add_argument("--bottleneck-norm", choices=["batch", "none"], default="batch", help="its normalisation (default: batch)")

    g = parser.add_argument_group("training")
    g.add_argument("--steps", type=_positive, help="iterations; default: 5001 (images), 1000 (features), 300 (glyphs)")
    g.add_argument("-b", "--batch-size", type=_positive, default=36, help="images per domain and step (default: 36)")
    g.add_argument("--lr", type=_learning_rate, default=0.01, help="learning rate of the heads; backbone 0.1x (default: 0.01)")
    g.add_argument("-j", "--workers", type=_workers, default=2, help="processes that decode images (default: 2)")
    g.add_argument("--seed", type=_seed, default=0, help="of the initial weights, batches and augmentation (default: 0)")
    g.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    g.add_argument(
        "--deterministic",
        action="store_true",
        help="the same bytes on CUDA too: only kernels with one result, slower (a CPU run needs no flag)",
    )
    g.add_argument(
        "--precision",
        default="auto",
        choices=["auto", "fp32", "tf32", "bf16", "fp16"],
        help="auto: bf16 on CUDA that has it, else fp16; fp32 on a CPU. Losses are always fp32",
    )
    g.add_argument(
        "--batch-norm",
        choices=["global", "local"],
        default="global",
        help="under torchrun, over the images of all processes (default): the same result on any number of them;\n"
        "or over each one's own: less to exchange, another result",
    )
    g.add_argument(
        "--compile",
        action="store_true",
        help="a faster backbone, equal up to rounding. CPU: loops that its C compiler builds in a second; "
        "GPU: torch.compile, which takes minutes to start and pays in long runs",
    )
    g.add_argument("--eval-every", type=_positive, metavar="N", help="evaluate every N steps; default: ten times per run")
    g.add_argument("--checkpoint-every", type=_positive, metavar="N", help="save every N steps; default: ten times per run")
    g.add_argument(
        "--checkpoint-minutes",
        type=_learning_rate,
        default=15.0,
        metavar="M",
        help="and whenever M minutes have passed since the last time (default: 15)",
    )
    g.add_argument("--keep", type=_positive, default=1, metavar="N", help="keep the last N checkpoints (default: 1)")
    g.add_argument(
        "--resume",
        action="store_true",
        help="insist on going on with the run in --log FOLDER (an unfinished run goes on by itself)",
    )
    g.add_argument(
        "--on-nonfinite",
        choices=["stop", "skip"],
        default="stop",
        help="a NaN or infinite loss: stop with exit code 3, or drop the step (up to 1 %% of them)",
    )

    g = parser.add_argument_group("output")
    g.add_argument("--log", metavar="FOLDER", help="run folder; default: runs/<data>_<source>2<target>_<noise>_<method>_seed<N>")
    g.add_argument("--overwrite", action="store_true", help="replace a finished run in --log FOLDER")
    g.add_argument(
        "--no-report", action="store_true", help="write no plots and no report.html (python -m tllib_ext.report makes them)"
    )
    g.add_argument("--phase", choices=["train", "test"], default="train", help="test: evaluate the model in --log FOLDER again")
    g.add_argument("-c", "--config", metavar="YAML", help="file of flags, 'noise: pair' per line; flags on the command line win")


def read_yaml(path: str, parser: argparse.ArgumentParser) -> Dict[str, Any]:
    """Settings from a YAML file, checked like flags: unknown keys and wrong values are errors."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(YAML_LIMIT + 1)
        if len(text) > YAML_LIMIT:
            raise UserError(f"{path} is too long for a configuration: more than {YAML_LIMIT} characters")
        _check_nesting(path, yaml.parse(text, Loader=yaml.SafeLoader))
        values = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected lines 'flag: value', e.g. 'noise: pair', found {type(values).__name__}")
    actions = {action.dest: action for action in parser._actions if action.dest not in ("help", "config")}
    settings: Dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in actions:
            raise UserError(f"{path}: unknown key {key!r}: {closest(name, actions)}")
        settings[name] = _checked(path, actions[name], value)
    return settings


def _check_nesting(path: str, events: Iterable[Any]) -> None:
    """Refuse aliases and deep nesting while parsing: a few lines of either can stand for more than memory holds."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind in ("MappingStartEvent", "SequenceStartEvent")
        depth -= kind in ("MappingEndEvent", "SequenceEndEvent")
        if depth > YAML_DEPTH or kind == "AliasEvent":
            what = "an alias (*)" if kind == "AliasEvent" else f"more than {YAML_DEPTH} levels"
            raise UserError(f"{path}: {what} in line {event.start_mark.line + 1}, expected plain lines 'flag: value'")


def _checked(path: str, action: argparse.Action, value: Any) -> Any:
    if isinstance(action.const, bool) and action.nargs == 0:
        if not isinstance(value, bool):
            raise UserError(f"{path}: {action.dest}: expected true or false, found {value!r}")
        return value
    if action.nargs == "+":
        if isinstance(value, dict):
            return [f"{name}={entry}" for name, entry in value.items()]
        return [str(entry) for entry in (value if isinstance(value, list) else [value])]
    if value is None:
        return None
    if isinstance(value, (list, dict)):
        raise UserError(f"{path}: {action.dest}: expected one value, found a {type(value).__name__}")
    try:
        result = action.type(str(value)) if action.type else str(value)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise UserError(f"{path}: {action.dest}: {error}") from None
    if action.choices and result not in action.choices:
        raise UserError(f"{path}: {action.dest}: {result!r} is none of {', '.join(map(str, action.choices))}")
    return result


def parse_run(parser: argparse.ArgumentParser, argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Parse flags, with the file of ``-c`` underneath; remembers the words as ``command``."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(words)
    if args.config:
        parser.set_defaults(**read_yaml(args.config, parser))
        args = parser.parse_args(words)
    args.command = words
    return args
