"""Named builders that are imported when they are used; other packages add their own by entry points."""

import importlib
import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any, Callable, Dict, Generic, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

from tllib_ext.errors import UserError, closest

__all__ = ["Registry"]

log = logging.getLogger("tllib_ext.registry")

T = TypeVar("T")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Entry:
    target: Any  # the builder, "module:attribute", "prefix:NAME", or the error to raise
    help: str = ""
    package: str = ""  # the distribution whose entry point it is; empty if it was registered by a call


@dataclass(frozen=True)
class _Prefix:
    resolver: str
    help: str
    names: Optional[Mapping[str, str]]


class Registry(Generic[T]):
    """Map names to builders.

    A builder is an object or a text ``"module:attribute"`` that :meth:`get` imports. A name registered twice is an
    error; an unknown name is an error with the closest names. Installed packages add builders by the entry-point group
    ``tllib_ext.<kind>s``, which is read when a name is not found or the names are listed. Names registered here take
    precedence over entry points; two packages with one name, or an entry that cannot be imported, give an error when that name is
    used, and only then.

    Args:
        kind (str): what the names are: ``"method"``, ``"dataset"``, ``"backbone"`` or ``"noise"``
        entries (dict, optional): name -> (``"module:attribute"``, one line of help)
        base (str, optional): ``"module:Class"`` of which every builder must be a subclass; default: any callable
        import_paths (bool, optional): whether ``package.module:attribute`` is a name as well. Default: False
        forms (dict, optional): other names that the caller accepts (``FILE.csv``) -> help, for lists and messages

    Examples::

        >>> shapes = Registry("shape", {"path": ("os.path:join", "two paths in one")})
        >>> @shapes.register("square", help="the second power")
        ... def square(side):
        ...     return side * side
        >>> shapes.get("square")(3), list(shapes), shapes.help()["square"]
        (9, ['path', 'square'], 'the second power')
    """

    def __init__(
        self,
        kind: str,
        entries: Optional[Mapping[str, Tuple[str, str]]] = None,
        base: Optional[str] = None,
        import_paths: bool = False,
        forms: Optional[Mapping[str, str]] = None,
    ):
        self.kind, self.group = kind, f"tllib_ext.{kind}s"
        self._base, self._import_paths, self._forms = base, import_paths, dict(forms or {})
        self._entries = {name: _Entry(*entry) for name, entry in (entries or {}).items()}
        self._prefixes: Dict[str, _Prefix] = {}
        self._has_entry_points = False

    def register(self, name: str, builder: Union[T, str, None] = None, help: str = "") -> Callable[[T], T]:
        """Add ``builder`` under ``name``; without ``builder`` this is a decorator."""

        def add(added: Any) -> Any:
            if name in self._entries and self._entries[name].target is not added:
                raise UserError(f"{self.kind} {name!r} is registered already: choose another name")
            self._entries[name] = _Entry(added, help)
            return added

        if builder is not None:
            add(builder)
        return add

    def register_prefix(self, prefix: str, resolver: str, help: str, names: Optional[Mapping[str, str]] = None) -> None:
        """Let ``prefix:NAME`` be the builder that a function returns for ``NAME``.

        Args:
            prefix (str): e.g. ``"timm"``
            resolver (str): ``"module:function"``
            help (str): one line about all of them; empty: they are not listed
            names (dict, optional): the names there are -> help; default: any, the function reports unknown ones
        """
        if prefix in self._prefixes:
            raise UserError(f"prefix {prefix!r} of {self.kind}s is registered already: choose another one")
        self._prefixes[prefix] = _Prefix(resolver, help, names)

    def get(self, name: str, import_paths: bool = True) -> T:
        """The builder called ``name``.

        Args:
            name (str): a registered name, ``prefix:NAME``, or ``package.module:attribute`` where the registry has that
            import_paths (bool): False refuses the last kind, for names from files that are not trusted. Default: True
        """
        target = self._target(str(name), import_paths)
        if target is None:
            raise UserError(f"unknown {self.kind} {name!r}: {closest(str(name), self.help())}")
        if isinstance(target, Exception):
            raise target
        entry = self._entries.get(name, _Entry(target))
        try:
            found = self._load(target) if isinstance(target, str) else target
        except UserError:
            raise
        except Exception as error:  # code of others, which may raise anything while it is imported
            if not entry.package and name != target:
                raise
            owner = f" of the package {entry.package}" if entry.package else ""
            hint = "" if entry.package else "; " + closest(str(name), self.help())
            raise UserError(f"{self.kind} {name!r}{owner} cannot be imported: {type(error).__name__}: {error}{hint}") from error
        base = self._load(self._base) if self._base else None
        if not (callable(found) if base is None else isinstance(found, type) and issubclass(found, base)):
            expected = "a callable" if base is None else f"a subclass of {base.__module__}.{base.__qualname__}"
            raise UserError(f"{self.kind} {name!r} is {found!r}: expected {expected}")
        return found

    def help(self) -> Dict[str, str]:
        """Every name in the order of :command:`tllib-ext list`, with its line of help; imports none of them."""
        self._read_entry_points()
        lines = {name: self._entries[name].help for name in self}
        for prefix, family in sorted(self._prefixes.items()):
            if not family.help:
                continue
            if family.names is None:
                lines[f"{prefix}:NAME"] = family.help
            for name, text in sorted((family.names or {}).items()):
                lines[f"{prefix}:{name}"] = text or family.help
        return {**lines, **self._forms}

    def __iter__(self) -> Iterator[str]:
        """The names without prefix."""
        self._read_entry_points()
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return self._target(str(name)) is not None

    def is_import_path(self, name: str) -> bool:
        """Whether ``name`` is not registered and would be imported as ``package.module:attribute``."""
        return name in self and self._target(name, import_paths=False) is None

    def _target(self, name: str, import_paths: bool = True) -> Any:
        if name not in self._entries:
            self._read_entry_points()
        if name in self._entries:
            return self._entries[name].target
        prefix, colon, plain = name.partition(":")
        if colon and prefix in self._prefixes:
            names = self._prefixes[prefix].names
            return name if names is None or plain in names else None
        return name if self._import_paths and import_paths and _IMPORT_PATH.fullmatch(name) else None

    def _load(self, target: str) -> Any:
        module, _, attribute = target.partition(":")
        if module in self._prefixes:
            return self._load(self._prefixes[module].resolver)(attribute)
        return getattr(importlib.import_module(module), attribute)

    def _read_entry_points(self) -> None:
        if self._has_entry_points:
            return
        self._has_entry_points = True
        for name, target, package, summary in _entry_points().get(self.group, ()):
            here = self._entries.get(name)
            entry = _Entry(target, f"{summary} (package {package})" if summary else f"package {package}", package)
            if here is None:
                self._entries[name] = entry
            elif here.package:
                message = f"the packages {here.package} and {package} both add the {self.kind} {name!r}: uninstall one of them"
                self._entries[name] = _Entry(UserError(message), message, f"{here.package}, {package}")
            else:
                log.warning("%s %r of the package %s is not used: the name is taken", self.kind, name, package)


@lru_cache(maxsize=1)
def _entry_points() -> Dict[str, List[Tuple[str, Any, str, str]]]:
    """Group -> (name, target, package, summary) of every entry point for this package; each installed package once."""
    groups: Dict[str, List[Tuple[str, Any, str, str]]] = {}
    seen = set()
    for package in metadata.distributions():
        try:
            ours = [point for point in package.entry_points if point.group.startswith("tllib_ext.")]
            if not ours or package.metadata["Name"] in seen:
                continue
            title, summary = package.metadata["Name"], package.metadata["Summary"] or ""
        except Exception as error:  # damaged metadata of one package must not hide those of the others
            log.warning("cannot read the entry points of an installed package: %s", error)
            continue
        seen.add(title)
        for point in ours:
            groups.setdefault(point.group, []).append((point.name, point.value.partition("[")[0].strip(), title, summary))
    return groups
