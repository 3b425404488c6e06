"""Fields of a settings dataclass: what each may hold, and what the command line and the help page need to know of it."""

import math
import os
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union, cast

from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.typing import PathLike

__all__ = [
    "Kind", "Setting", "setting", "settings_of", "read_value", "check_fields", "choice",
    "TEXT", "FLAG", "COUNT", "SEED", "WORKERS", "THREADS",
    "RATE", "POSITIVE", "NOT_NEGATIVE", "NUMBER", "DROP_RATE", "UNKNOWN_SHARE", "SPLIT", "HPARAMS",
    "COUNT_LIMIT", "SEED_LIMIT",
]  # fmt: skip

#: the largest number of steps, images per batch …, and the largest seed that every generator takes.
COUNT_LIMIT, SEED_LIMIT = 10**9, 2**32 - 1
#: a number or its text
Number = Union[str, float]


@dataclass(frozen=True)
class Kind:
    """What a setting may hold.

    Args:
        read (callable): a value, or its text, to the value; raises ValueError or TypeError for anything else
        expected (str): what the error message names
        choices (tuple): the only values, where there are few
    """

    read: Callable[[Any], object]
    expected: str
    choices: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What is known of a field besides its default.

    Args:
        kind (Kind): what it may hold
        help (str): one sentence for the help page
        group (str): the heading it stands under
        flags (tuple): on the command line; the first one starts with two dashes, except for a positional argument
        metavar (str, optional): placeholder of the value on the help page
        basic (bool): whether ``--help`` shows it, or only ``--help-all``
        essential (bool): whether it changes what a run computes
        in_files (bool): whether a configuration file may set it
    """

    kind: Kind
    help: str
    group: str
    flags: Tuple[str, ...]
    metavar: Optional[str] = None
    basic: bool = False
    essential: bool = True
    in_files: bool = True

    def negates(self, name: str) -> bool:
        """Whether the flag of the field ``name`` sets it to False: ``--no-download`` of ``download``."""
        return self.flags[0] == f"--no-{name.replace('_', '-')}"


def setting(
    default: object,
    kind: Kind,
    help: str,
    *flags: str,
    group: str,
    metavar: Optional[str] = None,
    basic: bool = False,
    essential: bool = True,
    in_files: bool = True,
) -> Any:
    """A dataclass field with a :class:`Setting`; without a long flag that is made of the field's name."""
    metadata = {"setting": Setting(kind, help, group, flags, metavar, basic, essential, in_files)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(cls: type) -> Dict[str, Setting]:
    """The settings of a dataclass by name, flags filled in."""
    return {f.name: _with_flag(f) for f in fields(cls)}


def _with_flag(f: "Field[object]") -> Setting:
    known: Setting = f.metadata["setting"]
    if any(not flag.startswith("-") or flag.startswith("--") for flag in known.flags):
        return known
    return replace(known, flags=(f"--{f.name.replace('_', '-')}", *known.flags))


def read_value(name: str, known: Setting, value: object) -> object:
    """The value of a setting, checked; text is converted as the command line converts it.

    Examples::

        >>> rate = Setting(RATE, "share of wrong labels", "noise", ("--rate",))
        >>> read_value("rate", rate, "0.25")
        0.25
        >>> read_value("rate", rate, 1.5)
        Traceback (most recent call last):
        ...
        tllib_ext.errors.UserError: rate=1.5: expected a number in [0, 1)
    """
    try:
        return known.kind.read(value)
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError):
        raise UserError(f"{name}={_shown(value)}: expected {known.kind.expected}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def check_fields(config: Any) -> None:
    """Convert and check every field of a frozen dataclass of settings, for its ``__post_init__``."""
    for f in fields(config):
        value = getattr(config, f.name)
        if value is None and f.default is None:
            continue
        object.__setattr__(config, f.name, read_value(f.name, f.metadata["setting"], value))


def _text(value: PathLike) -> str:
    text = str(os.fspath(value))
    if not text:
        raise ValueError
    return text


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _whole(low: int, high: int) -> Callable[[Number], int]:
    def read(value: Number) -> int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()) or not low <= int(value) <= high:
            raise ValueError
        return int(value)

    return read


def _real(inside: Callable[[float], bool]) -> Callable[[Number], float]:
    def read(value: Number) -> float:
        if isinstance(value, bool) or not inside(float(value)):
            raise ValueError
        return float(value)

    return read


def _drop_rate(value: Number) -> Union[float, str]:
    """A number, or a word that the method knows."""
    try:
        return _real(math.isfinite)(value)
    except ValueError:
        return str(value)


def _unknown_share(value: Number) -> Union[float, str]:
    return str(value) if value in ("few", "some", "many") else _real(lambda share: 0 <= share <= 1)(value)


def _split(value: object) -> Union[str, LabelSplit]:
    if isinstance(value, Mapping):
        return LabelSplit(**value)
    return value if isinstance(value, LabelSplit) else _text(cast(PathLike, value))


def _hparams(value: object) -> Dict[str, object]:
    """A mapping, or a list of ``NAME=VALUE``."""
    if isinstance(value, Mapping):
        return {str(name): entry for name, entry in value.items()}
    items: List[str] = [str(entry) for entry in (value if isinstance(value, (list, tuple)) else [value])]
    for item in items:
        if "=" not in item:
            raise UserError(f"hparams: {item!r}: expected NAME=VALUE, e.g. eta=0.1")
    return {name: text for name, _, text in (item.partition("=") for item in items)}


def choice(*names: str) -> Kind:
    """One of few words."""

    def read(value: object) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return Kind(read, f"one of {', '.join(names)}", names)


TEXT = Kind(_text, "text, not empty")
FLAG = Kind(_flag, "true or false")
COUNT = Kind(_whole(1, COUNT_LIMIT), f"a whole number, 1 or more, at most {COUNT_LIMIT}")
SEED = Kind(_whole(0, SEED_LIMIT), f"a whole number, 0 or more, at most {SEED_LIMIT}")
WORKERS = Kind(_whole(0, 256), "a whole number, 0 or more, at most 256")
THREADS = Kind(_whole(1, 256), "a whole number, 1 or more, at most 256")
RATE = Kind(_real(lambda x: 0 <= x < 1), "a number in [0, 1)")
POSITIVE = Kind(_real(lambda x: 0 < x < math.inf), "a positive number")
NOT_NEGATIVE = Kind(_real(lambda x: 0 <= x < math.inf), "a number, 0 or more")
NUMBER = Kind(_real(math.isfinite), "a number")
DROP_RATE = Kind(_drop_rate, "a number, or a word that the method knows")
UNKNOWN_SHARE = Kind(_unknown_share, "a number from 0 to 1, few, some or many")
SPLIT = Kind(_split, "a/b/c (shared/source private/target private), a preset's name or a LabelSplit")
HPARAMS = Kind(_hparams, "names and values")
