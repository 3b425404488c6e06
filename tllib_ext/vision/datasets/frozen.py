"""Features of a frozen backbone, extracted once and kept on disk under a key of everything that matters."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from tllib_ext.files import locked, whole_file, write_text

__all__ = ["state_digest", "files_digest", "read_cached", "write_cached"]

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

    Each file is read once. What was found is noted in ``folder`` under the files' names, sizes and times (when it was written,
    and when anything about it changed, which nobody can set back): as long as these stay, no file is opened again.
    """
    facts = hashlib.sha256()
    for path in paths:
        try:
            f = os.stat(path)
            facts.update(f"{f.st_size} {f.st_mtime_ns} {f.st_ctime_ns} ".encode())
        except OSError:
            facts.update(b"? ")  # reading it will say what is wrong
        facts.update(os.fsencode(path) + b"\n")
    note = folder / "contents" / facts.hexdigest()[:32]
    found = _noted(note)
    if found is None:
        with locked(note.with_suffix(".lock")):  # of several processes one reads the files
            found = _noted(note) or _contents_digest(paths, threads)
            write_text(note, found)
    return found


def _noted(note: Path) -> Optional[str]:
    try:
        text = note.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return text if len(text) == 64 else None


def _contents_digest(paths: Sequence[str], threads: int) -> str:
    def work(start: int) -> List[bytes]:
        return [_content(path) for path in paths[start : start + CHUNK]]

    digest = hashlib.sha256()
    with ThreadPoolExecutor(max(1, threads)) as pool, tqdm(
        desc="read", total=len(paths), unit="img", leave=False, disable=None
    ) as bar:
        for some in pool.map(work, range(0, len(paths), CHUNK)):
            digest.update(b"".join(some))
            bar.update(len(some))
    return digest.hexdigest()


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).digest()
    except OSError:  # decoding it will say what is wrong
        return bytes(32)


def _file(folder: Path, key: str) -> Path:
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


def read_cached(folder: Path, key: str) -> Optional[np.ndarray]:
    """The array stored under ``key``; None if there is none, or it was damaged from outside.

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
    with whole_file(_file(folder, key)) as draft, open(draft, "wb") as stream:
        np.save(stream, array)
