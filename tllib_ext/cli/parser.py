"""argparse made from settings dataclasses. Imports neither torch nor any method: ``--help`` takes no time."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, List, Mapping, NoReturn, Optional, Sequence, Tuple

from tllib_ext import errors
from tllib_ext.cli.threads import set_thread_defaults
from tllib_ext.cli.yaml_file import read_yaml
from tllib_ext.errors import UserError, closest, one_line
from tllib_ext.training.config import RunConfig
from tllib_ext.training.earlier import NEEDLESS, RENAMED
from tllib_ext.training.setting import FLAG, HPARAMS, Kind, Setting, read_value, settings_of
from tllib_ext.typing import Record

__all__ = ["Parser", "argument", "add_settings", "add_run_arguments", "parse_settings", "parse_run", "run_main", "name_flags",
           "output_file", "output_folder"]  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with exit code 2, and whose ``--help`` leaves rare flags to ``--help-all``."""

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)
        self._rare: List[Tuple[argparse.Action, str]] = []
        self._names: List[str] = []

    def add_setting(self, group: argparse._ArgumentGroup, name: str, known: Setting, default: object = None) -> None:
        """Add the flag of one setting; its value is left out of the namespace unless it is given."""
        self._names += known.flags
        text = known.help.replace("%", "%%")
        if known.kind is not FLAG and default not in (None, False, {}) and "default:" not in text:
            text += f" (default: {default})"
        more: Record = {"dest": name, "default": argparse.SUPPRESS}
        if not known.flags[0].startswith("-"):
            more = {"nargs": "?", "default": argparse.SUPPRESS}
        if known.kind is FLAG:
            more["action"] = "store_false" if known.negates(name) else "store_true"
        else:
            more["metavar"] = known.metavar or (f"{{{','.join(known.kind.choices)}}}" if known.kind.choices else None)
        if known.kind is HPARAMS:
            more["nargs"] = "+"
        flags = sorted(known.flags, key=len) if known.flags[0].startswith("-") else [name]
        action = group.add_argument(*flags, help=text, **more)
        if not known.basic:
            self._rare.append((action, text))
            action.help = argparse.SUPPRESS

    def add_help_all(self) -> None:
        """Add ``--help-all``, if there is anything that ``--help`` leaves out."""
        if self._rare:
            self.epilog = f"{self.epilog or ''}--help-all shows {len(self._rare)} more flags."
            self.add_argument("--help-all", action="store_true", default=argparse.SUPPRESS, help="explain every flag, and stop")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Show the long help page before anything else is looked at."""
        words = list(sys.argv[1:] if args is None else args)
        if self._rare and "--help-all" in words:
            for action, text in self._rare:
                action.help = text
            self.epilog = None
            self.print_help()
            self.exit(0)
        for flag in [flag for flag in NEEDLESS if flag in words and flag.replace("--", "--no-", 1) in self._names]:
            print(f"{flag} is no longer needed: {NEEDLESS[flag]}", file=sys.stderr)
            words = [word for word in words if word != flag]
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        _, found, rest = message.partition("unrecognized arguments: ")
        if found:
            wrong = rest.split()[0].partition("=")[0]
            renamed = RENAMED.get(wrong.removeprefix("--").replace("-", "_"))
            near = closest(wrong, self._names).split("known:")[0]
            message = f"unknown flag {wrong}: {near or 'see --help-all'}"
            if renamed is not None:
                message = f"{wrong} is called {settings_of(RunConfig)[renamed].flags[0]} now"
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")


def argument(kind: Kind) -> Callable[[str], object]:
    """``type=`` of an argparse flag that is not a field of a settings dataclass."""

    def read(text: str) -> object:
        try:
            return kind.read(text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text[:30]}: expected {kind.expected}") from None

    return read


def output_file(text: str) -> Path:
    """``type=`` of a flag that names a file to write; ``-`` is standard output."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name: expected a file, or - for standard output")
    return Path("/dev/stdout" if text == "-" else text)


def output_folder(text: str) -> Path:
    """``type=`` of a flag that names a folder to write to."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name: expected a folder")
    return Path(text)


def add_settings(
    parser: Parser, cls: type, leave_out: Iterable[str] = (), defaults: Optional[Mapping[str, object]] = None
) -> None:
    """Add a flag for every setting of a dataclass, in its named groups.

    Args:
        parser (Parser): gets the flags
        cls: a dataclass of :func:`~tllib_ext.training.setting.setting` fields
        leave_out (iterable of str): names without a flag
        defaults (mapping, optional): defaults to show instead of the dataclass's own
    """
    shown = {**vars(cls()), **(defaults or {})}
    groups: Record = {}
    for name, known in settings_of(cls).items():
        if name in leave_out:
            continue
        if known.group not in groups:
            groups[known.group] = parser.add_argument_group(known.group)
        parser.add_setting(groups[known.group], name, known, shown[name])


def add_run_arguments(parser: Parser, leave_out: Iterable[str] = ()) -> None:
    """All flags of one training run."""
    add_settings(parser, RunConfig, leave_out)
    parser.add_argument("-c", "--config", metavar="YAML", help="file of settings, 'noise: pair' per line; flags win over it")
    parser.add_help_all()


def parse_settings(
    parser: Parser, known: Mapping[str, Setting], argv: Optional[Sequence[str]] = None
) -> Tuple[Record, argparse.Namespace]:
    """Parse the words, with the file of ``-c`` underneath: the settings that were given, checked, and all other flags."""
    args = parser.parse_args(argv)
    given = {name: value for name, value in vars(args).items() if name in known}
    try:
        values = {name: read_value(name, known[name], value) for name, value in given.items()}
    except UserError as error:
        raise UserError(name_flags(str(error), known)) from None
    if getattr(args, "config", None):
        values = {**read_yaml(args.config, known), **values}
    return values, args


def parse_run(parser: Parser, argv: Optional[Sequence[str]] = None) -> RunConfig:
    """The run that the words describe."""
    return RunConfig(**parse_settings(parser, settings_of(RunConfig), argv)[0])


def run_main(main: Callable[[], Optional[int]]) -> int:
    """:func:`tllib_ext.errors.run_main` with the names of arguments in messages written as flags.

    Sets the defaults of :func:`~tllib_ext.cli.threads.set_thread_defaults`: torch is imported by the command.
    """
    set_thread_defaults()

    def command() -> Optional[int]:
        try:
            return main()
        except UserError as error:
            translated = UserError(name_flags(str(error)))
            translated.exit_code = error.exit_code
            raise translated from None

    return errors.run_main(command)


_ARGUMENT = re.compile(r"(?<![\w./=-])([a-z_]+)=('[^']*'|\"[^\"]*\"|[^\s:;,()]+)")


def name_flags(message: str, known: Optional[Mapping[str, Setting]] = None) -> str:
    """The message of a library call with ``name=value`` written as on the command line.

    Examples::

        >>> name_flags("rate=1.5: expected a number in [0, 1); or add overwrite=True")
        '--rate 1.5: expected a number in [0, 1); or add --overwrite'
    """
    settings = known or settings_of(RunConfig)

    def flag(match: "re.Match[str]") -> str:
        name, value = match.groups()
        if name not in settings or name == "root":
            return match.group()
        name_of_flag = settings[name].flags[0]
        alone = value == str(not settings[name].negates(name))
        return name_of_flag if alone else f"{name_of_flag} {value.strip(chr(39) + chr(34))}"

    return _ARGUMENT.sub(flag, message)
