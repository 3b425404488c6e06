"""Decoded pixels of a view: read each time, or once and kept in memory or on disk. The pixels are the same."""

import signal
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.cache import cached_pixels, decode_all, read_pixels

__all__ = ["LazyPixels", "RamPixels", "DiskPixels", "open_pixels"]


class LazyPixels(Dataset):
    """Decode on every access; :meth:`stream` does it in worker processes, ahead of time.

    Args:
        view: has ``path(index)``, ``loader`` and a length
        resize (int): side of the square
        workers (int): processes of :meth:`stream`
    """

    def __init__(self, view: Any, resize: int, workers: int = 0):
        self.view, self.resize, self.workers = view, resize, workers
        self._kept: Optional[DataLoader] = None

    def __len__(self) -> int:
        return len(self.view)

    def rows(self, index: Sequence[int]) -> Tensor:
        """Some images, :math:`(N, R, R, 3)` uint8."""
        return torch.from_numpy(np.stack([read_pixels(self.view, i, self.resize) for i in index]))

    def __getitems__(self, index: List[int]) -> Union[Tensor, UserError]:
        try:
            return self.rows(index)
        except UserError as error:  # handed over, not raised: the loader would wrap it in a worker's traceback
            return error

    def stream(self, batches: Sequence[np.ndarray], again: bool = False) -> Iterator[Tensor]:
        """:meth:`rows` of every batch, in order.

        Args:
            again (bool): the same ``batches`` object will come again, as in evaluations: keep the workers for it
        """
        if self.workers == 0:
            yield from map(self.rows, batches)
            return
        loader = self._kept
        if loader is None or loader.batch_sampler is not batches:
            loader = DataLoader(
                self, batch_sampler=batches, num_workers=self.workers, collate_fn=_as_it_is, prefetch_factor=4,
                pin_memory=torch.cuda.is_available(), persistent_workers=again, worker_init_fn=_outlive_signals,
            )  # fmt: skip
            self._kept = loader if again else self._kept
        for rows in loader:
            if isinstance(rows, UserError):
                raise rows
            yield rows

    def close(self) -> None:
        """End the processes that :meth:`stream` keeps. At the interpreter's end nobody would tell them: they outlive the
        signal that ends other children, and the run would wait for them."""
        self._kept = None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_kept": None}  # workers get the images' names, not each other


def _as_it_is(item: Any) -> Any:
    return item


def _outlive_signals(worker: int) -> None:
    """A signal to everybody (Ctrl-C, SLURM, torchrun) is for the run to answer, which needs its workers to finish the step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(60))  # SIGALRM ends the process


class _Stored(LazyPixels):
    """All images in one tensor ``_store``; a batch is a copy of some rows."""

    _store: Tensor

    def rows(self, index: Sequence[int]) -> Tensor:
        return self._store.index_select(0, torch.as_tensor(index))

    def stream(self, batches: Sequence[np.ndarray], again: bool = False) -> Iterator[Tensor]:
        return map(self.rows, batches)


class RamPixels(_Stored):
    """Decode everything once, in parallel, and keep it in memory."""

    def __init__(self, view: Any, resize: int, workers: int = 0, title: str = "decode"):
        super().__init__(view, resize, workers)
        store = np.empty((len(view), resize, resize, 3), dtype=np.uint8)
        decode_all(view, resize, store.__setitem__, workers, title)
        self._store = torch.from_numpy(store)


class DiskPixels(_Stored):
    """Decode everything once, in parallel, and keep it in a memory-mapped file for this run and the next ones.

    All processes of a machine share the pages of the file that are in memory.

    Args:
        folder (Path): where the files are, see :func:`~tllib_ext.vision.datasets.cache.cached_pixels`
    """

    def __init__(self, view: Any, resize: int, folder: Path, workers: int = 0, title: str = "decode"):
        super().__init__(view, resize, workers)
        self._store = torch.from_numpy(cached_pixels(view, resize, folder, workers, title))


def open_pixels(
    view: Any, resize: int, mode: str = "off", workers: int = 0, title: str = "decode", folder: Optional[Path] = None
) -> LazyPixels:
    """Pixels of ``view`` by cache mode: ``off``, ``ram`` or ``disk`` (in ``folder``)."""
    if mode == "disk":
        if folder is None:
            raise UserError("a cache on disk needs a folder")
        return DiskPixels(view, resize, folder, workers, title)
    return RamPixels(view, resize, workers, title) if mode == "ram" else LazyPixels(view, resize, workers)
