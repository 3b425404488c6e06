"""A cache of features on disk, and the digests of files and weights that its keys are made of."""

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence, TypeVar

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from tllib_ext.io import atomic_path, file_lock, write_text

__all__ = ["state_digest", "files_digest", "in_threads", "read_cached", "write_cached"]

T = TypeVar("T")
#: files that a thread takes at a time.
CHUNK = 32


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
    for some in in_threads(lambda chunk: b"".join(_content(paths[i]) for i in chunk), len(paths), threads, "read"):
        digest.update(some)
    return digest.hexdigest()


def _content(path: str) -> bytes:
    try:
        if os.path.isfile(path):  # opening a pipe would block
            with open(path, "rb") as stream:
                return hashlib.file_digest(stream, "sha256").digest()
    except OSError:
        pass
    return bytes(32)  # decoding it will raise the error


def in_threads(work: Callable[[range], T], total: int, threads: int, title: str) -> Iterator[T]:
    """``work(chunk)`` for the chunks of ``range(total)``, in threads; results in order, the first error stops all."""
    chunks = [range(start, min(start + CHUNK, total)) for start in range(0, total, CHUNK)]
    pool = ThreadPoolExecutor(max(1, threads))
    try:
        with tqdm(desc=title, total=total, unit="img", leave=False, disable=None) as bar:
            for chunk, made in zip(chunks, pool.map(work, chunks)):
                bar.update(len(chunk))
                yield made
    finally:
        pool.shutdown(cancel_futures=True)


def _file(folder: Path, key: str) -> Path:
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


def read_cached(folder: Path, key: str) -> Optional[np.ndarray]:
    """The array stored under ``key``; None if there is none or its file is damaged.

    Examples::

        >>> import tempfile; folder = Path(tempfile.mkdtemp())
        >>> read_cached(folder, "k"); write_cached(folder, "k", np.ones(2)); read_cached(folder, "k").tolist()
        [1.0, 1.0]
    """
    try:
        return np.load(_file(folder, key), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None


def write_cached(folder: Path, key: str, array: np.ndarray) -> None:
    """Store an array under ``key``."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(_file(folder, key)) as draft, open(draft, "wb") as stream:
        np.save(stream, array)
