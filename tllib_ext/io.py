"""Files that appear whole or not at all, and locks around making them."""

import errno
import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Union

from tllib_ext.errors import UserError

__all__ = ["whole_file", "write_json", "write_text", "write_measured", "locked", "remove_drafts"]


@contextmanager
def whole_file(path: Union[str, os.PathLike]) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it becomes ``path`` when the block ends well, and goes if not.

    Examples::

        >>> with whole_file("/tmp/whole_file_example.txt") as draft:
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
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="surrogateescape")


def write_json(path: Union[str, os.PathLike], value: Any) -> None:
    """Write a JSON file whole."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=True) + "\n")


#: what a script measured stands between these marks of a page.
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def write_measured(page: Path, text: str) -> None:
    """Put ``text`` between the page's marks; what is around them stays."""
    head, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    if not begin or END not in rest:
        raise UserError(f"{page} has no {BEGIN} … {END} to write between")
    write_text(page, f"{head}{BEGIN}{text}{END}{rest.partition(END)[2]}")


def remove_drafts(folder: Union[str, os.PathLike]) -> None:
    """Remove what a killed process left of :func:`whole_file` below ``folder``; the caller holds the folder's lock."""
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
