"""Pixel stores: decode the images of a view on every access, or once into memory or a file. The pixels are the same.

Also the check before training: decode every image, list all that fail.
"""

import copy
import signal
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.cache import cached_pixels, decode_all, in_threads, read_pixels
from tllib_ext.vision.datasets.types import ImageListLike, ImageView

__all__ = ["LazyPixels", "StoredPixels", "open_pixels", "bad_images", "without_images"]

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


class StoredPixels(LazyPixels):
    """Decode all images once, in threads, into memory; with ``folder`` into a memory-mapped file that processes share."""

    def __init__(
        self, view: ImageView, resize: int, workers: int = 0, title: str = "decode", folder: Optional[Path] = None
    ):  # fmt: skip
        super().__init__(view, resize, workers)
        if folder is None:
            store = np.empty((len(view), resize, resize, 3), dtype=np.uint8)
            decode_all(view, resize, store.__setitem__, workers, title)
        else:
            store = cached_pixels(view, resize, folder, workers, title)
        self._store = torch.from_numpy(store)

    def rows(self, index: Indices) -> Tensor:
        return self._store.index_select(0, torch.as_tensor(index))

    def stream(self, batches: Sequence[np.ndarray], again: bool = False) -> Iterator[Tensor]:
        return map(self.rows, batches)


def open_pixels(
    view: ImageView, resize: int, mode: str = "off", workers: int = 0, title: str = "decode", folder: Optional[Path] = None
) -> LazyPixels:
    """Pixels of ``view`` by cache mode: ``off``, ``ram`` or ``disk`` (in ``folder``)."""
    if mode == "disk" and folder is None:
        raise UserError("the cache mode disk needs a folder")
    if mode == "off":
        return LazyPixels(view, resize, workers)
    return StoredPixels(view, resize, workers, title, folder if mode == "disk" else None)


def bad_images(paths: Sequence[str], loader: Callable[[str], object], workers: int = 1) -> List[Tuple[str, str]]:
    """Path and reason of each image that ``loader`` cannot read, in the order of ``paths``; ``workers`` threads read.

    Examples::

        >>> bad_images(["nowhere.png"], open)
        [('nowhere.png', "[Errno 2] No such file or directory: 'nowhere.png'")]
    """

    def check(chunk: range) -> List[Tuple[str, str]]:
        bad = []
        for path in (paths[index] for index in chunk):
            try:
                loader(path)
            except Exception as error:  # a foreign loader may raise anything
                bad.append((path, str(error) or type(error).__name__))
        return bad

    return [found for bad in in_threads(check, len(paths), workers, "check") for found in bad]


def without_images(dataset: ImageListLike, paths: Iterable[str]) -> ImageListLike:
    """A copy of an image list without some of its images."""
    rest: Any = copy.copy(dataset)
    left_out = set(paths)
    rest.samples = [sample for sample in dataset.samples if sample[0] not in left_out]
    return rest
