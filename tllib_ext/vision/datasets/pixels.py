"""Pixel stores: decode the images of a view on every access, or once into memory or a file. The pixels are the same."""

import signal
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Sequence, TypeVar, Union, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.cache import cached_pixels, decode_all, read_pixels
from tllib_ext.vision.datasets.types import ImageView

__all__ = ["LazyPixels", "RamPixels", "DiskPixels", "open_pixels"]

T = TypeVar("T")
Indices = Union[Sequence[int], np.ndarray]


class LazyPixels(Dataset):
    """Decode ``view`` to squares of side ``resize`` on every access; :meth:`stream` decodes ahead in worker processes."""

    def __init__(self, view: ImageView, resize: int, workers: int = 0):
        self.view, self.resize, self.workers = view, resize, workers
        self._persistent: Optional[DataLoader] = None

    def __len__(self) -> int:
        return len(self.view)

    def rows(self, index: Indices) -> Tensor:
        """Some images, :math:`(N, R, R, 3)` uint8."""
        return torch.from_numpy(np.stack([read_pixels(self.view, i, self.resize) for i in index]))

    def __getitems__(self, index: List[int]) -> Union[Tensor, UserError]:
        try:
            return self.rows(index)
        except UserError as error:  # returned, not raised: the loader would wrap it in a worker's traceback
            return error

    def stream(self, batches: Sequence[np.ndarray], again: bool = False) -> Iterator[Tensor]:
        """:meth:`rows` of every batch, in order; ``again`` keeps the workers for the next stream of the same ``batches``."""
        if self.workers == 0:
            yield from map(self.rows, batches)
            return
        loader = self._persistent
        if loader is None or loader.batch_sampler is not batches:
            loader = DataLoader(
                self, batch_sampler=cast("Iterable[List[int]]", batches), num_workers=self.workers, collate_fn=_identity,
                prefetch_factor=4, pin_memory=torch.cuda.is_available(), persistent_workers=again, worker_init_fn=_ignore_signals,
            )  # fmt: skip
            self._persistent = loader if again else self._persistent
        for rows in loader:
            if isinstance(rows, UserError):
                raise rows
            yield rows

    def close(self) -> None:
        """End the processes that :meth:`stream` keeps; they ignore signals, so that the interpreter would wait for them."""
        self._persistent = None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_persistent": None}  # what workers are sent


def _identity(item: T) -> T:
    return item


def _ignore_signals(worker: int) -> None:
    """Signals to the process group (Ctrl-C, SLURM, torchrun) are handled by the run, which finishes its step first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(60))  # SIGALRM ends the process


class _StoredPixels(LazyPixels):
    """All images in one tensor; a batch is a copy of some rows."""

    _store: Tensor

    def rows(self, index: Indices) -> Tensor:
        return self._store.index_select(0, torch.as_tensor(index))

    def stream(self, batches: Sequence[np.ndarray], again: bool = False) -> Iterator[Tensor]:
        return map(self.rows, batches)


class RamPixels(_StoredPixels):
    """Decode all images once, in threads, into memory."""

    def __init__(self, view: ImageView, resize: int, workers: int = 0, title: str = "decode"):
        super().__init__(view, resize, workers)
        store = np.empty((len(view), resize, resize, 3), dtype=np.uint8)
        decode_all(view, resize, store.__setitem__, workers, title)
        self._store = torch.from_numpy(store)


class DiskPixels(_StoredPixels):
    """Decode all images once, in threads, into a memory-mapped file in ``folder`` that runs and processes share."""

    def __init__(self, view: ImageView, resize: int, folder: Path, workers: int = 0, title: str = "decode"):
        super().__init__(view, resize, workers)
        self._store = torch.from_numpy(cached_pixels(view, resize, folder, workers, title))


def open_pixels(
    view: ImageView, resize: int, mode: str = "off", workers: int = 0, title: str = "decode", folder: Optional[Path] = None
) -> LazyPixels:
    """Pixels of ``view`` by cache mode: ``off``, ``ram`` or ``disk`` (in ``folder``)."""
    if mode == "disk":
        if folder is None:
            raise UserError("the cache mode disk needs a folder")
        return DiskPixels(view, resize, folder, workers, title)
    return RamPixels(view, resize, workers, title) if mode == "ram" else LazyPixels(view, resize, workers)
