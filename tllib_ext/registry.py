"""Named builders that are imported when they are used; other packages add their own by entry points."""

import importlib
import logging
import re
from functools import lru_cache
from importlib import metadata
from typing import Any, Callable, Dict, Generic, Iterator, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union

from tllib_ext.errors import UserError, closest

__all__ = ["Registry"]

log = logging.getLogger("tllib_ext.registry")

T = TypeVar("T")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class _Entry(NamedTuple):
    target: Any  # the builder, "module:attribute", "prefix:NAME", or the error to raise
    help: str = ""
    package: str = ""  # the distribution whose entry point it is


class Registry(Generic[T]):
    """Map names to builders.

    A builder is an object or a text ``"module:attribute"`` that :meth:`get` imports. A name registered twice is an
    error; an unknown name is an error with the closest names. Installed packages add builders by the entry-point group
    ``tllib_ext.<kind>s``, which is read when a name is not found or the names are listed. Names registered here take
    precedence; two packages with one name, or an entry that cannot be imported, give an error when that name is used.

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
        self, kind: str, entries: Optional[Mapping[str, Tuple[str, str]]] = None, base: Optional[str] = None,
        import_paths: bool = False, forms: Optional[Mapping[str, str]] = None,
    ):  # fmt: skip
        self.kind, self.group = kind, f"tllib_ext.{kind}s"
        self._base, self._import_paths, self._forms = base, import_paths, dict(forms or {})
        self._entries = {name: _Entry(*entry) for name, entry in (entries or {}).items()}
        self._prefixes: Dict[str, Tuple[str, str, Optional[Mapping[str, str]]]] = {}  # resolver, help, names
        self._has_entry_points = False

    def register(self, name: str, builder: Union[T, str, None] = None, help: str = "") -> Callable[[T], T]:
        """Add ``builder`` under ``name``; without ``builder`` this is a decorator."""

        def add(added: Any) -> Any:
            if name in self._entries and self._entries[name].target is not added:
                raise UserError(f"{self.kind} {name!r} is registered already: choose another name")
            self._entries[name] = _Entry(added, help)
            return added

        return add if builder is None else add(builder)

    def register_prefix(self, prefix: str, resolver: str, help: str, names: Optional[Mapping[str, str]] = None) -> None:
        """Let ``prefix:NAME`` be the builder that the function ``resolver``, ``"module:function"``, returns for ``NAME``.

        ``names`` maps the names there are to their help; by default the resolver reports unknown ones. A prefix without
        ``help`` is not listed.
        """
        if prefix in self._prefixes:
            raise UserError(f"prefix {prefix!r} of {self.kind}s is registered already: choose another one")
        self._prefixes[prefix] = resolver, help, names

    def get(self, name: str, import_paths: bool = True) -> T:
        """The builder called ``name``; ``import_paths=False`` refuses import paths, for names from untrusted files."""
        entry = self._find(str(name), import_paths)
        if entry is None:
            raise UserError(f"unknown {self.kind} {name!r}: {closest(str(name), self.help())}")
        if isinstance(entry.target, Exception):
            raise entry.target
        try:
            found = self._load(entry.target) if isinstance(entry.target, str) else entry.target
        except UserError:
            raise
        except Exception as error:  # code of others, which may raise anything while it is imported
            owner = f" of the package {entry.package}" if entry.package else ""
            hint = "; " + closest(str(name), self.help()) if name == entry.target else ""
            raise UserError(f"{self.kind} {name!r}{owner} cannot be imported: {type(error).__name__}: {error}{hint}") from error
        base = self._load(self._base) if self._base else None
        if not callable(found) or base and not (isinstance(found, type) and issubclass(found, base)):
            expected = f"a subclass of {base.__module__}.{base.__qualname__}" if base else "a callable"
            raise UserError(f"{self.kind} {name!r} is {found!r}: expected {expected}")
        return found

    def help(self) -> Dict[str, str]:
        """Every name in the order of :command:`tllib-ext list`, with its line of help; imports none of them."""
        lines = {name: self._entries[name].help for name in self}
        for prefix, (_, text, names) in sorted(self._prefixes.items()):
            if text:
                lines.update({f"{prefix}:{name}": line or text for name, line in sorted((names or {"NAME": text}).items())})
        return {**lines, **self._forms}

    def __iter__(self) -> Iterator[str]:
        """The names without prefix."""
        self._read_entry_points()
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return self._find(str(name)) is not None

    def is_import_path(self, name: str) -> bool:
        """Whether ``name`` is not registered and would be imported as ``package.module:attribute``."""
        return name in self and self._find(name, import_paths=False) is None

    def _find(self, name: str, import_paths: bool = True) -> Optional[_Entry]:
        if name not in self._entries:
            self._read_entry_points()
        if name in self._entries:
            return self._entries[name]
        prefix, colon, plain = name.partition(":")
        if colon and prefix in self._prefixes:
            names = self._prefixes[prefix][2]
            return _Entry(name) if names is None or plain in names else None
        return _Entry(name) if self._import_paths and import_paths and _IMPORT_PATH.fullmatch(name) else None

    def _load(self, target: str) -> Any:
        module, _, attribute = target.partition(":")
        if module in self._prefixes:
            return self._load(self._prefixes[module][0])(attribute)
        return getattr(importlib.import_module(module), attribute)

    def _read_entry_points(self) -> None:
        if self._has_entry_points:
            return
        self._has_entry_points = True
        for point in _entry_points(self.group):
            package, summary = (point.dist.name, point.dist.metadata["Summary"]) if point.dist else ("", "")
            here, title = self._entries.get(point.name), f"package {package}"
            if here is None:
                line = f"{summary} ({title})" if summary else title
                self._entries[point.name] = _Entry(point.value.partition("[")[0].strip(), line, package)
            elif here.package:
                message = (
                    f"the packages {here.package} and {package} both add the {self.kind} {point.name!r}: uninstall one of them"
                )
                self._entries[point.name] = _Entry(UserError(message), message, f"{here.package}, {package}")
            else:
                log.warning("%s %r of the %s is not used: the name is taken", self.kind, point.name, title)


@lru_cache(maxsize=None)
def _entry_points(group: str) -> metadata.EntryPoints:
    return metadata.entry_points(group=group)  # reads the metadata of every installed package
