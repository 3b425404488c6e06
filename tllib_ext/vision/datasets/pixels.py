"""Pixel stores: decode the images of a view on every access, or once into memory or a file. The pixels are the same.

Also the check before training: decode every image, list all that fail.
"""

import copy
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.cache import cached_pixels, decode_all, read_pixels
from tllib_ext.vision.datasets.decoding import in_chunks, work_ahead
from tllib_ext.vision.datasets.types import ImageListLike, ImageView

__all__ = ["LazyPixels", "StoredPixels", "open_pixels", "bad_images", "without_images"]

Indices = Union[Sequence[int], np.ndarray]


class LazyPixels:
    """Decode ``view`` to squares of side ``resize`` on every access; :meth:`stream` decodes ahead in threads."""

    def __init__(self, view: ImageView, resize: int, workers: int = 0):
        self.view, self.resize, self.workers = view, resize, workers

    def __len__(self) -> int:
        return len(self.view)

    def rows(self, index: Indices) -> Tensor:
        """Some images, :math:`(N, R, R, 3)` uint8."""
        return torch.from_numpy(self._decode(index))

    def _decode(self, index: Indices) -> np.ndarray:
        return np.stack([read_pixels(self.view, i, self.resize) for i in index])

    def stream(self, batches: Sequence[np.ndarray]) -> Iterator[Tensor]:
        """:meth:`rows` of every batch, in order."""
        yield from map(torch.from_numpy, work_ahead(self._decode, batches, self.workers))


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

    def stream(self, batches: Sequence[np.ndarray]) -> Iterator[Tensor]:
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

    def reason(index: int) -> Optional[str]:
        try:
            loader(paths[index])
        except Exception as error:  # a foreign loader may raise anything
            return str(error) or type(error).__name__
        return None

    reasons = in_chunks(reason, len(paths), workers, "check")
    return [(path, why) for path, why in zip(paths, reasons) if why is not None]


def without_images(dataset: ImageListLike, paths: Iterable[str]) -> ImageListLike:
    """A copy of an image list without some of its images."""
    rest: Any = copy.copy(dataset)
    left_out = set(paths)
    rest.samples = [sample for sample in dataset.samples if sample[0] not in left_out]
    return rest
