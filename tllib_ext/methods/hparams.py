"""Hyper-parameters of a method: a flat dataclass whose fields carry their provenance, and its parser."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Mapping, Set, Type, TypeVar, get_args, get_type_hints

from tllib_ext.errors import UserError, closest

__all__ = ["Hparams", "hparam"]

H = TypeVar("H", bound="Hparams")

#: Values that version 0.1 stored under another name; its saved models and configurations still load.
_RENAMED = {"official": "code"}


def hparam(default: object, source: str, help: str = "") -> Any:
    """A field of :class:`Hparams`.

    Args:
        default: the value without a preset or an option
        source (str): where that value comes from, and what the paper or the authors' code has where they differ
        help (str): what the hyper-parameter does
    """
    return field(default=default, metadata={"source": source, "help": help})


@dataclass
class Hparams:
    """Base of every method's hyper-parameters: a flat dataclass of :func:`hparam` fields."""

    @classmethod
    def parse(cls: Type[H], values: Mapping[str, object]) -> H:
        """Build from names and (possibly textual) values; an unknown name is an error that lists the closest."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                end = closest(name, known) if known else "it has none"
                raise UserError(f"unknown hyper-parameter {name!r} of {cls.__qualname__}: {end}")
        types = get_type_hints(cls)
        return cls(**{name: _convert(name, value, types[name]) for name, value in values.items()})


def _convert(name: str, value: object, hint: object) -> Any:
    """``value`` as the field's type; text is read as a number, a truth value or None where the type has one."""
    kinds: Set[type] = set(get_args(hint) or (hint,))
    if isinstance(value, str):
        value = _read(_RENAMED.get(value, value), kinds)
    if not kinds <= {bool, int, float, str, type(None)}:
        return value  # a type of the method's own: its __post_init__ checks it
    accepted = tuple(kinds | {int}) if float in kinds else tuple(kinds)
    fits = isinstance(value, accepted) and (bool in kinds or not isinstance(value, bool))
    # finite, and at most 64 bits where PyTorch takes an integer
    if not fits or (isinstance(value, (int, float)) and not abs(value) < (2**63 if isinstance(value, int) else math.inf)):
        raise UserError(f"hyper-parameter {name}={value!r}: expected {_expected(kinds)}")
    return value


def _read(text: str, kinds: Set[type]) -> object:
    """The first of the field's types that ``text`` can be read as; ``text`` itself if there is none."""
    word = text.lower()
    if type(None) in kinds and word in ("none", "null"):
        return None
    if bool in kinds and word in ("true", "false", "1", "0", "yes", "no"):
        return word in ("true", "1", "yes")
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def _expected(kinds: Set[type]) -> str:
    names: Dict[type, str] = {bool: "true or false", int: "a number (int)", float: "a number (float, finite)", str: "text"}
    return " or ".join([text for kind, text in names.items() if kind in kinds] + ["none"] * (type(None) in kinds))
