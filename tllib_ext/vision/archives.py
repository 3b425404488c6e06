"""Unpack a zip, tar or compressed tar archive that is not trusted: plain files and folders below one folder, bounded in size."""

import bz2
import gzip
import io
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Callable, Dict, Iterator, NamedTuple, Optional

from tllib_ext.errors import UserError, visible
from tllib_ext.typing import PathLike
from tllib_ext.vision.transfer import readable_size

__all__ = ["ArchiveError", "unpack"]

#: entries of an archive; the largest one of DomainNet has 175,000
MOST_ENTRIES = 2_000_000
#: bytes that an archive may unpack to: so many times its own size, or so many at least. Photographs hardly shrink.
RATIO, LEAST_LIMIT = 10, 256 << 20
#: bytes that are copied at a time, and the most that a header may take
_CHUNK = 1 << 20
_COMPRESSIONS: Dict[bytes, Callable[[PathLike], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class ArchiveError(UserError):
    """An archive is damaged or does what an archive of data does not do. Exit code 2."""


class _Entry(NamedTuple):
    name: str
    size: int
    is_folder: bool
    problem: str
    #: opens the content, for files
    open: Callable[[], Optional[IO[bytes]]]


def unpack(archive: PathLike, folder: PathLike, limit: Optional[int] = None, most_entries: int = MOST_ENTRIES) -> None:
    """Unpack ``archive`` into ``folder``, which does not exist before; nothing of it is left if anything is wrong.

    Every entry is checked before it is written: no absolute name, no ``..``, no link, no device, none twice. Owners and
    permissions are left out. The checksums of the format are verified.

    Args:
        archive (str or Path): .zip, .tar, .tar.gz, .tgz, .tar.bz2 or .tar.xz, by content
        folder (str or Path): is made
        limit (int, optional): bytes that it may unpack to; default: ten times its size, 256 MiB at least
        most_entries (int): number of files and folders that it may hold
    """
    archive, folder = Path(archive), Path(folder)
    if limit is None:
        limit = max(RATIO * archive.stat().st_size, LEAST_LIMIT)
    folder.mkdir(parents=True)
    try:
        _write(_entries(archive, limit), folder, limit, most_entries)
    except ArchiveError as error:
        shutil.rmtree(folder)
        raise ArchiveError(f"{archive} is not unpacked: {error}") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, NotImplementedError,
            gzip.BadGzipFile, RuntimeError, OverflowError) as error:  # fmt: skip
        shutil.rmtree(folder)
        reason = str(error) or type(error).__name__
        raise ArchiveError(f"{archive} is damaged or no archive of a kind that is known: {visible(reason)[:200]}") from None
    except BaseException:
        shutil.rmtree(folder)
        raise


def _write(entries: Iterator[_Entry], folder: Path, limit: int, most_entries: int) -> None:
    total, free = 0, shutil.disk_usage(folder).free
    for count, entry in enumerate(entries, 1):
        total += entry.size
        if count > most_entries:
            raise ArchiveError(f"it has more than {most_entries} entries")
        if total > limit:
            raise ArchiveError(f"it unpacks to more than {readable_size(limit)}")
        if total > free:
            raise ArchiveError(f"it needs more than the {readable_size(free)} that are free in {folder.parent}: free some space")
        problem = entry.problem or _problem_of_name(entry.name) or ("of a negative size" if entry.size < 0 else "")
        if problem:
            raise ArchiveError(f"its entry {visible(entry.name)[:100]!r} is {problem}")
        target = folder.joinpath(*PurePosixPath(entry.name).parts)
        content = None if entry.is_folder else entry.open()
        try:
            (target if content is None else target.parent).mkdir(parents=True, exist_ok=True)
            if content is not None:
                with content, open(target, "xb") as stream:
                    shutil.copyfileobj(content, stream, _CHUNK)
        except (FileExistsError, NotADirectoryError):
            raise ArchiveError(f"its entry {visible(entry.name)[:100]!r} is there twice") from None


def _problem_of_name(name: str) -> str:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or (parts and parts[0].endswith(":")):
        return "an absolute path"
    if ".." in parts:
        return "outside of its folder"
    return "a name with a NUL byte" if "\0" in name else ""


def _entries(archive: Path, limit: int) -> Iterator[_Entry]:
    with open(archive, "rb") as stream:
        beginning = stream.read(6)
    if beginning.startswith(b"PK"):
        yield from _of_zip(archive)
        return
    decompress = next((opener for magic, opener in _COMPRESSIONS.items() if beginning.startswith(magic)), None)
    with open(archive, "rb") if decompress is None else decompress(archive) as stream:
        yield from _of_tar(_Bounded(stream))
        left = limit
        while chunk := stream.read(_CHUNK):  # to the end, where a compressed file has its checksum
            left -= len(chunk)
            if left < 0:
                raise ArchiveError(f"it unpacks to more than {readable_size(limit)}")


def _of_zip(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            mode = info.external_attr >> 16
            plain = stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR)
            problem = "" if plain else "no plain file"
            problem = "encrypted" if info.flag_bits & 1 else problem
            problem = "placed before the archive begins" if info.header_offset < 0 else problem
            yield _Entry(info.filename, info.file_size, info.is_dir(), problem, partial(opened.open, info))


def _of_tar(stream: "_Bounded") -> Iterator[_Entry]:
    with tarfile.open(fileobj=stream, mode="r:") as opened:  # type: ignore[call-overload]
        while (info := opened.next()) is not None:
            plain = (info.isreg() or info.isdir()) and not info.issparse()
            problem = "" if plain else "no plain file"
            yield _Entry(info.name, info.size, info.isdir(), problem, partial(opened.extractfile, info))
            opened.members = []  # the list of a large archive takes memory


class _Bounded:
    """A stream that gives at most a megabyte at a time: ``tarfile`` reads a header whole, of whatever size it claims to be."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """At most :data:`_CHUNK` bytes."""
        if not 0 <= size <= _CHUNK:
            raise ArchiveError("a header in it is larger than a megabyte")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Of the stream."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """Of the stream."""
        return self._stream.tell()
