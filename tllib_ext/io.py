"""Atomic writes, JSON lines, CSV with formula escaping, and file locks."""

import csv
import errno
import fcntl
import json
import os
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, TextIO, Tuple, Union

import numpy as np

from tllib_ext.errors import UserError

__all__ = [
    "atomic_path", "write_json", "write_text", "write_between_marks", "locked", "remove_temporary_files", "read_lines",
    "CHUNK", "atomic_text", "escape_formula", "number_or_nan", "read_columns", "reading", "unescape_formula",
]  # fmt: skip


@contextmanager
def atomic_path(path: Union[str, os.PathLike]) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it becomes ``path`` when the block ends well, and goes if not.

    Examples::

        >>> with atomic_path("/tmp/whole_file_example.txt") as draft:
        ...     _ = draft.write_text("all of it")
        >>> Path("/tmp/whole_file_example.txt").read_text()
        'all of it'
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        _flush(draft)
        os.replace(draft, path)
        _flush(path.parent)  # or a power cut could take the new name back
    except OSError as error:
        if error.errno is not None and error.filename is not None:
            raise
        # write() does not say which file is too large, and numpy not even why: it wrote less than it had.
        raise OSError(error.errno or errno.ENOSPC, error.strerror or str(error), str(path)) from None
    finally:
        draft.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Union[str, os.PathLike], text: str) -> None:
    """Write a text file whole."""
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="surrogateescape")


def write_json(path: Union[str, os.PathLike], value: Any) -> None:
    """Write a JSON file whole."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=True) + "\n")


#: what a script measured stands between these marks of a page.
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def write_between_marks(page: Path, text: str) -> None:
    """Put ``text`` between the page's marks; what is around them stays."""
    head, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    if not begin or END not in rest:
        raise UserError(f"{page} has no {BEGIN} … {END} to write between")
    write_text(page, f"{head}{BEGIN}{text}{END}{rest.partition(END)[2]}")


def remove_temporary_files(folder: Union[str, os.PathLike]) -> None:
    """Remove what a killed process left of :func:`atomic_path` below ``folder``; the caller holds the folder's lock."""
    for draft in Path(folder).rglob(".*.part"):
        draft.unlink(missing_ok=True)


@contextmanager
def locked(path: Union[str, os.PathLike]) -> Iterator[None]:
    """Hold the lock file ``path``, waiting while another process has it: what two need, one makes and the other finds.

    The lock ends with the process, however it ends. A file system without locks is trusted to have one user.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            # lockf, not flock: processes that this one forks must not keep the lock when it dies.
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield


def read_lines(file: Path) -> List[Dict[str, Any]]:
    """Records of a ``.jsonl`` file; a torn last line (the machine died while it was written) is left out."""
    if not file.exists():
        return []
    records = []
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return [record for record in records if isinstance(record, dict) and type(record.get("step")) is int]


#: rows in memory as Python objects at a time; few enough to stay in the processor's cache
CHUNK = 1000
_FORMULA = frozenset("=+-@\t\r\n'")


def escape_formula(text: str) -> str:
    """``text`` as a cell that no spreadsheet takes for a formula; :func:`unescape_formula` gives it back.

    Examples::

        >>> [escape_formula(text) for text in ("mug", "=1+1", "'quoted'")]
        ['mug', "'=1+1", "''quoted'"]
    """
    return "'" + text if text[:1] in _FORMULA else text


def unescape_formula(cell: str) -> str:
    """The text of a cell that :func:`escape_formula` wrote."""
    return cell[1:] if cell[:1] == "'" else cell


def number_or_nan(cell: str) -> float:
    """A number, NaN for an empty cell."""
    return float(cell) if cell else float("nan")


@contextmanager
def atomic_text(file: Union[str, Path]) -> Iterator[TextIO]:
    """A stream whose text becomes ``file`` when all of it is written; on an error nothing of it stays."""
    # surrogateescape: a file name that is not UTF-8 keeps its bytes
    with atomic_path(file) as draft, open(draft, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        yield stream


@contextmanager
def reading(file: Union[str, Path]) -> Iterator[TextIO]:
    """Open a text file; what goes wrong with the file is a :class:`UserError`."""
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None


def read_columns(
    file: Union[str, Path], converters: Dict[str, Tuple[Callable, Any]], required: Sequence[str]
) -> Dict[str, np.ndarray]:
    """Read the columns that ``converters`` name (cell -> value, dtype), as far as the file has them.

    Python objects exist of one chunk at a time. ``required`` columns must be there, any others are passed over.
    """
    chunks: Dict[str, List[np.ndarray]] = {}
    with reading(file) as stream:
        reader = filter(None, csv.reader(stream))  # a blank line is no row
        header = next(reader, None)
        if header is None:
            raise UserError(f"{file} is empty: expected the header {','.join(converters)}")
        _check_header(header, file, list(converters), required)
        done = 0
        for rows in iter(lambda: list(islice(reader, CHUNK)), []):
            if set(map(len, rows)) != {len(header)}:
                row, size = next((row, len(cells)) for row, cells in enumerate(rows) if len(cells) != len(header))
                raise UserError(f"{file}, row {done + row + 1}: {size} cells, the header has {len(header)}")
            for name, cells in zip(header, zip(*rows)):
                if name in converters:
                    chunks.setdefault(name, []).append(_convert(cells, *converters[name], f"{file}, {name}", done))
            done += len(rows)
    if not chunks:
        raise UserError(f"{file} has a header and no rows")
    return {name: np.concatenate(parts) for name, parts in chunks.items()}


def _convert(cells: Sequence[str], convert: Callable, dtype: Any, where: str, done: int) -> np.ndarray:
    try:
        return np.array(list(map(convert, cells)), dtype=dtype)
    except (ValueError, OverflowError):
        kind = "an integer" if convert is int else "a number"
        for row, cell in enumerate(cells, done + 1):
            try:
                np.array(convert(cell), dtype=dtype)
            except UserError as error:
                raise UserError(f"{where}, row {row}: {error}") from None
            except (ValueError, OverflowError):
                raise UserError(f"{where}, row {row}: found {cell!r}, expected {kind}") from None
        raise


def _check_header(header: List[str], file: Union[str, Path], names: List[str], required: Sequence[str]) -> None:
    missing = [name for name in required if name not in header]
    if len(missing) == len(required):
        raise UserError(f"{file} is not a CSV file of this kind: expected the header {','.join(names)}")
    if missing:
        raise UserError(f"{file} has no column {', '.join(missing)}: expected the header {','.join(names)}")
    twice = [name for name in names if header.count(name) > 1]
    if twice:
        raise UserError(f"{file} has the column {', '.join(twice)} twice")
