"""Names to builders, without importing any of them until one is asked for."""

from importlib import import_module
from typing import Any, Callable, Dict, Iterator, Optional

from tllib_ext.errors import UserError, closest

__all__ = ["Registry"]


class Registry:
    """Map a name to a builder.

    A value is the builder itself or ``"module:attribute"``, imported at the first :meth:`get`.
    A name registered twice is an error, an unknown name is an error that lists the closest ones.

    Args:
        kind (str): what the names are, for messages: ``"method"``, ``"dataset"``, ``"backbone"``.
        entries (dict, optional): name -> ``"module:attribute"``.

    Examples::

        >>> shapes = Registry("shape", {"path": "os.path:join"})
        >>> @shapes.register("square")
        ... def square(side):
        ...     return side * side
        >>> shapes.get("square")(3), sorted(shapes)
        (9, ['path', 'square'])
    """

    def __init__(self, kind: str, entries: Optional[Dict[str, Any]] = None):
        self.kind = kind
        self._entries: Dict[str, Any] = dict(entries or {})

    def register(self, name: str, builder: Any = None) -> Callable:
        """Add ``builder`` under ``name``; without ``builder`` it is a decorator."""
        if builder is None:
            return lambda decorated: self.register(name, decorated) or decorated
        if name in self._entries and self._entries[name] is not builder:
            raise UserError(f"{self.kind} {name!r} is registered already: choose another name")
        self._entries[name] = builder

    def get(self, name: str) -> Any:
        """The builder called ``name``."""
        if name not in self._entries:
            raise UserError(f"unknown {self.kind} {name!r}: {closest(name, self._entries)}")
        entry = self._entries[name]
        if isinstance(entry, str):
            module, attribute = entry.split(":")
            entry = self._entries[name] = getattr(import_module(module), attribute)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries
