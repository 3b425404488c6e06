"""tllib's built-in methods behind the contract of :mod:`tllib_ext.methods.base`."""

from typing import TYPE_CHECKING, Type

if TYPE_CHECKING:
    from tllib_ext.methods.base import Method

__all__ = ["build_class"]


def build_class(name: str) -> "Type[Method]":
    """The method ``tllib:NAME``; an error with the remedy where tllib, or the part of it that is needed, is missing."""
    from tllib_ext.compat import tllib
    from tllib_ext.methods.tllib import games, losses

    found = {**vars(losses), **vars(games)}[f"Tllib{name.capitalize()}"]
    tllib(found.part)
    return found
