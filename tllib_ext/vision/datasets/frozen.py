"""Features of a frozen backbone, extracted once and kept on disk under a key of everything that matters."""

import hashlib
import os
from pathlib import Path
from typing import Iterable, Optional

import numpy as np
import torch
from torch import nn

from tllib_ext.files import whole_file

__all__ = ["state_digest", "files_digest", "read_cached", "write_cached"]


def state_digest(module: nn.Module) -> str:
    """Digest of every parameter and buffer: another weight anywhere is another backbone."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def files_digest(paths: Iterable[str]) -> str:
    """Digest of a list of files by name, size and time of change: an edited image is another image."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            facts = os.stat(path)
            digest.update(f"{facts.st_size} {facts.st_mtime_ns} ".encode())
        except OSError:
            digest.update(b"? ")  # reading it will say what is wrong
        digest.update(os.fsencode(path) + b"\n")
    return digest.hexdigest()


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
