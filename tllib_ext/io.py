"""Atomic writes, file locks, JSON lines, CSV with formula escaping."""

import csv
import errno
import json
import os
import shutil
import stat
import tempfile
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, TextIO, Tuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike

from tllib_ext.errors import LockHeld, UserError
from tllib_ext.streams import is_stream, open_stream
from tllib_ext.typing import PathLike, Record

__all__ = [
    "atomic_path", "atomic_text", "write_json", "write_text", "write_between_marks",
    "remove_temporary_files", "file_lock", "check_regular", "read_json_lines", "CHUNK", "cache_dir",
    "escape_formula", "unescape_formula", "number_or_nan", "open_text", "read_columns", "write_rows",
    "Converter", "INTEGER", "NUMBER", "OPTIONAL_NUMBER", "TEXT",
]  # fmt: skip


def cache_dir() -> Path:
    """Where generated data and frozen features are kept: ``$TLLIB_EXT_CACHE`` or ``~/.cache/tllib_ext``."""
    try:
        return Path(os.environ.get("TLLIB_EXT_CACHE") or Path.home() / ".cache" / "tllib_ext")
    except RuntimeError:
        raise UserError("this user has no home folder: set TLLIB_EXT_CACHE to the folder for caches") from None


@contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """A temporary file name beside ``path``: renamed to ``path`` after the block, removed if the block raises.

    A reader sees the old content or the new one, never a part of it, even after a power cut. Of a symbolic link the target
    is replaced and the link stays. Standard output (``/dev/stdout``), a device, a pipe and a socket are written to.

    Examples::

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder, "example.txt")) as temporary:
        ...         _ = temporary.write_text("complete")
        ...     Path(folder, "example.txt").read_text()
        'complete'
    """
    path = Path(path)
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder, path.name)
            yield draft
            with open_stream(path) as stream, open(draft, "rb") as content:
                shutil.copyfileobj(content, stream)
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        _fsync(temporary)
        os.replace(temporary, path)
        _fsync(path.parent)  # the rename itself must survive a power cut too
    except OSError as error:
        if error.errno is not None and error.filename not in (None, str(temporary)):
            raise
        # write() does not name the file that is too large; numpy reports a short write without an errno.
        raise OSError(error.errno or errno.ENOSPC, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_text(path: PathLike) -> Iterator[TextIO]:
    """A text stream whose content becomes ``path`` after the block; if the block raises, ``path`` is unchanged."""
    # surrogateescape: a file name that is not UTF-8 keeps its bytes
    with atomic_path(path) as file, open(file, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        yield stream


def write_text(path: PathLike, text: str) -> None:
    """Write a text file atomically."""
    with atomic_text(path) as stream:
        stream.write(text)


def write_json(path: PathLike, value: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=True) + "\n")


#: marks of a page between which a script writes its measurements
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def write_between_marks(page: Path, text: str) -> None:
    """Replace the text between the page's marks."""
    head, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    if not begin or END not in rest:
        raise UserError(f"{page} lacks the marks {BEGIN} … {END}: add them where the text belongs")
    write_text(page, f"{head}{BEGIN}{text}{END}{rest.partition(END)[2]}")


def remove_temporary_files(folder: PathLike) -> None:
    """Remove the temporary files that a killed process left below ``folder``. The caller holds the folder's lock."""
    for file in Path(folder).rglob(".*.part"):
        file.unlink(missing_ok=True)


@contextmanager
def file_lock(path: PathLike, blocking: bool = True) -> Iterator[None]:
    """Hold the lock file ``path`` during the block.

    The operating system releases the lock when the process ends, however it ends; child processes do not inherit it.
    On a file system without locks the block runs unlocked.

    Args:
        path (str or Path): the lock file; it is created, with its folder, and stays
        blocking (bool): wait while another process holds the lock. If False, :class:`~tllib_ext.errors.LockHeld` is raised
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # opening a pipe could wait for ever
        raise UserError(f"{path} is not a regular file: remove it, it is the place of a lock file")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, fallback_to_soft=False)  # a soft lock (a file that exists) would outlive a killed process
    try:
        lock.acquire(blocking=blocking)
    except Timeout:
        raise LockHeld(f"{path} is locked by another process") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    try:
        yield
    finally:
        lock.release()


def read_json_lines(file: Path) -> List[Record]:
    """Evaluations of a ``.jsonl`` file: records that have an integer ``step``; lines that are no JSON (a torn last line) are
    skipped. Every value but the scenario is a number or None; anything else is a :class:`UserError`."""
    records = []
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else ():
        with suppress(ValueError, RecursionError):
            records.append(json.loads(line))
    records = [record for record in records if isinstance(record, dict) and type(record.get("step")) is int]
    for record in records:
        for name, value in record.items():
            if name != "scenario" and not isinstance(value, (int, float, type(None))):
                raise UserError(f"{file}, step {record['step']}: {name} is {str(value)[:40]!r}, expected a number")
    return records


#: rows that are Python objects at a time; few enough to stay in the processor's cache
CHUNK = 1000
_FORMULA = frozenset("=+-@\t\r\n'")


def escape_formula(text: str) -> str:
    """``text`` as a cell that no spreadsheet evaluates as a formula; :func:`unescape_formula` is the inverse.

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


def check_regular(file: PathLike) -> None:
    """Refuse a pipe, a device or a folder in the place of a file: opening a pipe would wait for ever. Absent is no error."""
    try:
        mode = os.stat(file).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise UserError(f"cannot read {file}: it is not a regular file")


@contextmanager
def open_text(file: PathLike) -> Iterator[TextIO]:
    """Open a text file for reading; a file that cannot be read or is no CSV file is a :class:`UserError`."""
    check_regular(file)
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None


def write_rows(file: PathLike, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically; the caller escapes text by :func:`escape_formula`."""
    with atomic_text(file) as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)


#: cell -> value, and the dtype of the column
Converter = Tuple[Callable[[str], object], DTypeLike]
INTEGER: Converter = (int, np.int64)
NUMBER: Converter = (float, np.float64)
OPTIONAL_NUMBER: Converter = (number_or_nan, np.float64)
TEXT: Converter = (unescape_formula, object)


def read_columns(
    file: PathLike, converters: Mapping[str, Converter], required: Sequence[str], delimiter: str = ","
) -> Dict[str, np.ndarray]:
    """Read the columns of a CSV file that ``converters`` names, as far as the file has them; ``required`` ones must exist.

    Rows are converted in chunks, so that Python objects exist for one chunk at a time.
    """
    chunks: Dict[str, List[np.ndarray]] = {}
    with open_text(file) as stream:
        reader = filter(None, csv.reader(stream, delimiter=delimiter))  # a blank line is no row
        header = next(reader, None)
        if header is None:
            raise UserError(f"{file} is empty: expected the header {','.join(converters)}")
        done, expected = 0, f"expected the header {','.join(converters)}"
        if missing := [name for name in required if name not in header]:
            kind = "is not a CSV file of this kind" if len(missing) == len(required) else f"has no column {', '.join(missing)}"
            raise UserError(f"{file} {kind}: {expected}")
        if twice := [name for name in converters if header.count(name) > 1]:
            raise UserError(f"{file} has the column {', '.join(twice)} twice")
        for rows in iter(lambda: list(islice(reader, CHUNK)), []):
            if set(map(len, rows)) != {len(header)}:
                row, size = next((row, len(cells)) for row, cells in enumerate(rows) if len(cells) != len(header))
                raise UserError(f"{file}, row {done + row + 1}: {size} cells, the header has {len(header)}")
            for name, cells in zip(header, zip(*rows)):
                if name in converters:
                    chunks.setdefault(name, []).append(_convert(cells, converters[name], f"{file}, {name}", done))
            done += len(rows)
    if not chunks:
        raise UserError(f"{file} has a header and no rows")
    return {name: np.concatenate(parts) for name, parts in chunks.items()}


def _convert(cells: Sequence[str], converter: Converter, where: str, done: int) -> np.ndarray:
    convert, dtype = converter
    try:
        return np.array(list(map(convert, cells)), dtype=dtype)
    except (ValueError, OverflowError):  # find the cell
        for row, cell in enumerate(cells, done + 1):
            try:
                np.array(convert(cell), dtype=dtype)
            except (ValueError, OverflowError) as error:
                found = f"found {cell!r}, expected {'an integer' if convert is int else 'a number'}"
                raise UserError(f"{where}, row {row}: {error if isinstance(error, UserError) else found}") from None
        raise
