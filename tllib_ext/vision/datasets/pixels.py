"""Decoded pixels of a view: read each time, or once and kept."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator, List, Sequence, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from tllib_ext.errors import UserError
from tllib_ext.vision.transforms import decode

__all__ = ["LazyPixels", "RamPixels", "open_pixels"]


class LazyPixels(Dataset):
    """Decode on every access; :meth:`stream` does it in worker processes, ahead of time.

    Args:
        view: has ``path(index)``, ``loader`` and a length
        resize (int): side of the square
        workers (int): processes of :meth:`stream`
    """

    def __init__(self, view: Any, resize: int, workers: int = 0):
        self.view, self.resize, self.workers = view, resize, workers

    def __len__(self) -> int:
        return len(self.view)

    def pixels(self, index: int) -> np.ndarray:
        """One image, :math:`(R, R, 3)` uint8."""
        return decode(self.view.loader(self.view.path(index)), self.resize)

    def rows(self, index: Sequence[int]) -> Tensor:
        """Some images, :math:`(N, R, R, 3)` uint8."""
        return torch.from_numpy(np.stack([self.pixels(i) for i in index]))

    def __getitems__(self, index: List[int]) -> Union[Tensor, UserError]:
        try:
            return self.rows(index)
        except UserError as error:  # handed over, not raised: the loader would wrap it in a worker's traceback
            return error

    def stream(self, batches: Sequence[np.ndarray]) -> Iterator[Tensor]:
        """:meth:`rows` of every batch, in order."""
        if self.workers == 0:
            yield from map(self.rows, batches)
            return
        loader = DataLoader(
            self, batch_sampler=batches, num_workers=self.workers, collate_fn=_as_it_is,
            pin_memory=torch.cuda.is_available(), prefetch_factor=4,
        )  # fmt: skip
        for rows in loader:
            if isinstance(rows, UserError):
                raise rows
            yield rows


def _as_it_is(item: Any) -> Any:
    return item


class RamPixels(LazyPixels):
    """Decode everything once, in parallel, and keep it in memory."""

    def __init__(self, view: Any, resize: int, workers: int = 0, title: str = "decode"):
        super().__init__(view, resize, workers)
        store = np.empty((len(view), resize, resize, 3), dtype=np.uint8)

        def fill(index: int) -> None:
            store[index] = self.pixels(index)

        with ThreadPoolExecutor(max(1, workers)) as pool:
            jobs = pool.map(fill, range(len(view)))
            for _ in tqdm(jobs, title, len(view), unit="img", leave=False, disable=None):
                pass
        self._store = torch.from_numpy(store)

    def rows(self, index: Sequence[int]) -> Tensor:
        return self._store[torch.as_tensor(index)]

    def stream(self, batches: Sequence[np.ndarray]) -> Iterator[Tensor]:
        return map(self.rows, batches)


def open_pixels(view: Any, resize: int, mode: str = "off", workers: int = 0, title: str = "decode") -> LazyPixels:
    """Pixels of ``view`` by cache mode: ``off`` or ``ram``."""
    if mode == "ram":
        return RamPixels(view, resize, workers, title)
    return LazyPixels(view, resize, workers)
