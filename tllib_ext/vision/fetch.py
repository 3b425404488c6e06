"""Provide files that a run needs: fetched when they are absent, checked, complete or not there, by one process at a time."""

import hashlib
import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Protocol, Sequence

from tllib_ext.errors import LockHeld, UserError
from tllib_ext.io import file_lock
from tllib_ext.vision.transfer import FetchError, Transfer, say

__all__ = ["Needed", "RemoteFile", "base_address", "forbidden", "new_folders", "only_one_process", "provide"]


class Needed(Protocol):
    """Something that a run needs and this machine lacks."""

    @property
    def title(self) -> str:
        """What it is."""

    def bring(self) -> str:
        """What a person without a network brings from where to where."""

    def at_hand(self) -> bool:
        """Whether no network is needed after all."""

    def fetch(self) -> None:
        """Download it, or raise :class:`~tllib_ext.vision.transfer.FetchError`."""


@dataclass(frozen=True)
class RemoteFile:
    """A file that belongs to a place on this machine and can be downloaded.

    Args:
        title (str): what it is, for messages
        url (str): its address, http or https
        path (Path): its place
        digest (str): beginning of its SHA-256 in hexadecimal, empty if that is not known. Default: ''
        room (float): free disk space that is needed, times the size of the file. Default: 1
        otherwise (str): what helps in place of the file, for messages. Default: ''
    """

    title: str
    url: str
    path: Path
    digest: str = ""
    room: float = 1.0
    otherwise: str = ""

    def bring(self) -> str:
        """What a person without a network brings from where to where."""
        return f"bring {self.url} to {self.path}" + (f" ({self.otherwise})" if self.otherwise else "")

    def at_hand(self) -> bool:
        """Whether it is there."""
        return self.path.exists()

    def fetch(self) -> None:
        """Download it unless it is there; an interrupted download is continued."""
        if self.path.exists():
            return
        part = self.path.with_name(f"{self.path.name}.part")
        with new_folders(self.path.parent), only_one_process(self.path, self.title):
            if self.path.exists():  # another process has fetched it meanwhile
                return
            transfer = Transfer(self.title, self.url, part, self.path, self.room)
            continued = transfer.received() > 0
            try:
                transfer.run()
                if continued and not self._fits(part):  # it began as another file
                    part.unlink()
                    transfer.run()
                if not self._fits(part):
                    part.unlink()
                    found = f"its SHA-256 does not begin with {self.digest}"
                    raise FetchError(f"{self.title} from {self.url} is damaged: {found}; it was removed")
                os.replace(part, self.path)
            finally:
                if part.exists() and not transfer.received():
                    part.unlink()

    def _fits(self, file: Path) -> bool:
        if not self.digest:
            return True
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest().startswith(self.digest)


def provide(needed: Sequence[Needed], download: bool = True) -> None:
    """Fetch what is needed, or raise one line that names all of it and where it belongs.

    Args:
        needed (sequence of Needed): what this machine lacks
        download (bool): whether the network may be used. Default: True
    """
    missing = list(needed)
    try:
        while missing:
            if forbidden(download) and not missing[0].at_hand():
                names = " and ".join(one.title for one in missing)
                raise FetchError(f"not on this machine: {names}; downloads are forbidden ({forbidden(download)})")
            missing[0].fetch()
            del missing[0]
    except FetchError as error:
        raise UserError(f"{error}; without a network: {', and '.join(one.bring() for one in missing)}") from None


def forbidden(download: bool = True) -> str:
    """What forbids downloads: the argument or the environment; an empty text if nothing does."""
    offline = os.environ.get("TLLIB_EXT_OFFLINE", "0")
    if not download:
        return "download=False"
    return "" if offline in ("", "0") else f"TLLIB_EXT_OFFLINE={offline}"


def base_address(variable: str) -> str:
    """The address in an environment variable without a slash at its end; empty if it is not set."""
    return os.environ.get(variable, "").rstrip("/")


@contextmanager
def only_one_process(path: Path, title: str) -> Iterator[None]:
    """Let one process at a time provide ``path``; others say so and wait. The lock file beside it is removed."""
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(lock, blocking=False))
        except LockHeld:
            say(f"waiting for another process, which is downloading {title}")
            while True:
                with suppress(FileNotFoundError):  # it failed and removed the folder that it had made
                    stack.enter_context(file_lock(lock))
                    break
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # while it is held: a process that waits takes a new one


@contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """Make ``folder`` and its parents for the block; those that are new and still empty after it are removed."""
    absent = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for parent in absent:
            with suppress(OSError):
                parent.rmdir()
