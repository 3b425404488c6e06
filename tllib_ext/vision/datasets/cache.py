"""A cache of decoded images: all images of a view in one memory-mapped file, under a digest of everything they depend on.

Files are written atomically under a lock: a process that finds another one building the same file waits for it, and a
process that is killed leaves no file behind. A complete cache may be on a read-only disk.
"""

import hashlib
import os
from pathlib import Path
from typing import Callable, Optional, Tuple

import numpy as np
import PIL

from tllib_ext.errors import UserError
from tllib_ext.io import atomic_path, file_lock
from tllib_ext.vision.datasets.frozen import files_digest, in_threads
from tllib_ext.vision.datasets.types import ImageView
from tllib_ext.vision.transforms import decode

__all__ = ["read_pixels", "pixel_key", "decode_all", "cached_pixels"]

#: part of the key; increase it when `decode` or a loader gives other pixels.
VERSION = 2


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
    """Call ``put(index, pixels)`` for every image, in threads, as Pillow decodes without the interpreter's lock."""

    def work(chunk: range) -> None:
        for index in chunk:
            put(index, read_pixels(view, index, resize))

    for _ in in_threads(work, len(view), threads, title):
        pass


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
    try:
        array = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):  # absent or damaged
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


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
