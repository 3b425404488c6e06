"""Features of a frozen backbone, extracted once and kept on disk under a key of everything that matters."""

import hashlib
import os
from pathlib import Path
from typing import Any, Iterable

import numpy as np
import torch
from torch import nn

from tllib_ext.files import whole_file

__all__ = ["state_digest", "files_digest", "cached_array"]


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


def cached_array(folder: Path, key: str, make: Any, write: bool = True) -> np.ndarray:
    """The array stored under ``key``, or what ``make()`` returns, stored for the next time.

    Examples::

        >>> import tempfile; folder = Path(tempfile.mkdtemp())
        >>> cached_array(folder, "k", lambda: np.ones(2)).tolist(), cached_array(folder, "k", None).tolist()
        ([1.0, 1.0], [1.0, 1.0])
    """
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"
    try:
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError):
        array = make()  # absent, or damaged from outside: make it (again)
    if write:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as draft, open(draft, "wb") as stream:
            np.save(stream, array)
    return array
