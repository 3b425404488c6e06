"""Caches on disk: decoded images in one memory-mapped file per view, features of a frozen backbone, digests of files.

A file is named by a digest of everything that its content depends on. Files are written atomically under a lock: a process
that finds another one building the same file waits for it, and a process that is killed leaves no file behind. A complete
cache may be on a read-only disk.
"""

import errno
import hashlib
import os
from pathlib import Path
from typing import Callable, Literal, Optional, Sequence, Tuple

import numpy as np
import PIL
import torch
from torch import nn

from tllib_ext.errors import UserError
from tllib_ext.io import atomic_path, file_lock, write_text
from tllib_ext.vision.datasets.decoding import in_chunks
from tllib_ext.vision.datasets.types import ImageView
from tllib_ext.vision.transforms import decode

__all__ = ["state_digest", "files_digest", "read_cached", "write_cached", "read_pixels", "pixel_key", "decode_all",
           "cached_pixels"]  # fmt: skip

#: part of the key; increase it when `decode` or a loader gives other pixels.
VERSION = 2


def state_digest(module: nn.Module) -> str:
    """Digest of every parameter and buffer: another weight anywhere is another backbone."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def files_digest(paths: Sequence[str], folder: Path, threads: int = 1) -> str:
    """Digest of what is in a list of files, in its order, wherever they are and whatever they are called.

    The digest is stored in ``folder`` under the names, sizes, modification and change times of the files: while these stay
    the same, no file is opened again. A read-only folder is used as it is.
    """
    facts = hashlib.sha256()
    for path in paths:
        try:
            f = os.stat(path)
            facts.update(f"{f.st_size} {f.st_mtime_ns} {f.st_ctime_ns} ".encode())
        except OSError:
            facts.update(b"? ")  # decoding it will raise the error
        facts.update(os.fsencode(path) + b"\n")
    file = folder / "contents" / facts.hexdigest()[:32]
    found = _stored_digest(file)
    if found is not None:
        return found
    try:
        with file_lock(file.with_suffix(".lock")):  # of several processes one reads the files
            found = _stored_digest(file) or _contents_digest(paths, threads)
            write_text(file, found)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    return found or _contents_digest(paths, threads)


def _stored_digest(file: Path) -> Optional[str]:
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return text if len(text) == 64 else None


def _contents_digest(paths: Sequence[str], threads: int) -> str:
    digest = hashlib.sha256()
    for content in in_chunks(lambda index: _content(paths[index]), len(paths), threads, "read"):
        digest.update(content)
    return digest.hexdigest()


def _content(path: str) -> bytes:
    try:
        if os.path.isfile(path):  # opening a pipe would block
            with open(path, "rb") as stream:
                return hashlib.file_digest(stream, "sha256").digest()
    except OSError:
        pass
    return bytes(32)  # decoding it will raise the error


def _file(folder: Path, key: str) -> Path:
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


def read_cached(folder: Path, key: str) -> Optional[np.ndarray]:
    """The array stored under ``key``; None if there is none or its file is damaged.

    Examples::

        >>> import tempfile; folder = Path(tempfile.mkdtemp())
        >>> read_cached(folder, "k"); write_cached(folder, "k", np.ones(2)); read_cached(folder, "k").tolist()
        [1.0, 1.0]
    """
    return _load(_file(folder, key))


def _load(file: Path, mmap_mode: Optional[Literal["c"]] = None) -> Optional[np.ndarray]:
    try:
        return np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except Exception:  # absent or damaged: a damaged header can raise anything
        return None


def write_cached(folder: Path, key: str, array: np.ndarray) -> None:
    """Store an array under ``key``."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(_file(folder, key)) as draft, open(draft, "wb") as stream:
        np.save(stream, array)


def read_pixels(view: ImageView, index: int, resize: int) -> np.ndarray:
    """One decoded image, :math:`(R, R, 3)` uint8; an unreadable one is a :class:`UserError` whatever the loader raises."""
    path = view.path(index)
    try:
        return decode(view.loader(path), resize)
    except UserError:
        raise
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all three for damaged files
        raise UserError(f"unreadable image {path}: {error}") from None


def pixel_key(view: ImageView, resize: int, folder: Path, threads: int = 1) -> str:
    """Digest of the files' contents and order, the loader, Pillow's version and the size; ``folder`` caches it."""
    loader = view.loader
    name = f"{getattr(loader, '__module__', '')}.{getattr(loader, '__qualname__', type(loader).__name__)}"
    text = f"pixels {VERSION} {PIL.__version__} {name} {resize} {files_digest(view.paths, folder, threads)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def decode_all(view: ImageView, resize: int, put: Callable[[int, np.ndarray], None], threads: int, title: str) -> None:
    """Call ``put(index, pixels)`` for every image, in order and in this thread; ``threads`` decode."""
    for index, pixels in enumerate(in_chunks(lambda index: read_pixels(view, index, resize), len(view), threads, title)):
        put(index, pixels)


def cached_pixels(view: ImageView, resize: int, folder: Path, threads: int = 1, title: str = "decode") -> np.ndarray:
    r"""All images of ``view`` as one memory-mapped array, decoded now if they are not in the cache.

    Args:
        view (ImageView), resize (int): the images and the side R of their squares
        folder (Path): of the cache
        threads (int), title (str): how many decode, and the title of the progress bar

    Shape:
        - Outputs: :math:`(N, R, R, 3)` uint8; writing to it does not change the file
    """
    file, shape = folder / f"{pixel_key(view, resize, folder, threads)}.npy", (len(view), resize, resize, 3)
    found = _open(file, shape)
    if found is None:
        with file_lock(folder / f".{file.stem}.lock"):
            found = _open(file, shape)  # another process may have built it meanwhile
            if found is None:
                _build(file, view, shape, threads, title)
                found = _open(file, shape)
    if found is None:
        raise OSError(f"cannot read {file}, which was just written")
    return found


def _open(file: Path, shape: Tuple[int, ...]) -> Optional[np.ndarray]:
    array = _load(file, mmap_mode="c")
    return array if array is not None and array.shape == shape and array.dtype == np.uint8 else None


def _build(file: Path, view: ImageView, shape: Tuple[int, ...], threads: int, title: str) -> None:
    for stale in file.parent.glob(f".{file.name}.*.part"):  # we hold the lock: the process that wrote them is gone
        stale.unlink(missing_ok=True)
    with atomic_path(file) as draft, open(draft, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        stream.flush()
        begin, size = stream.tell(), int(np.prod(shape[1:]))
        # Space is reserved first and written without a mapping: a full disk is an error here, but a crash in a mapped file.
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(stream.fileno(), begin, shape[0] * size)

        def put(index: int, pixels: np.ndarray) -> None:
            os.pwrite(stream.fileno(), np.ascontiguousarray(pixels).data, begin + index * size)

        decode_all(view, shape[1], put, threads, title)
