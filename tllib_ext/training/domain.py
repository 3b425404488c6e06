"""One domain as the loop sees it: batches for training, and everything once in list order."""

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, cast

import numpy as np
import torch
from torch import Tensor

from tllib_ext.methods.base import Batch
from tllib_ext.vision.datasets.maps import StoredMaps
from tllib_ext.vision.datasets.types import PixelStore
from tllib_ext.vision.transforms import Augment

__all__ = ["Domain", "Steps", "ahead"]


class Steps:
    """The sample indices of the steps ``start … stop - 1`` as a sequence of batches, for one process's share.

    Args:
        sampler (callable): step -> indices of the global batch
        start (int), stop (int): range of steps
        rank (int), world (int): which share of each batch
    """

    def __init__(self, sampler: Any, start: int, stop: int, rank: int = 0, world: int = 1):
        self.sampler, self.start, self.stop, self.rank, self.world = sampler, start, stop, rank, world

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, position: int) -> np.ndarray:
        if not 0 <= position < len(self):
            raise IndexError(position)
        whole = self.sampler(self.start + position)
        share = len(whole) // self.world
        return whole[self.rank * share : (self.rank + 1) * share]


class Domain:
    """Inputs and labels of one domain on a device.

    Args:
        view: a ``UniversalView`` or ``NoisyLabels``
        device (torch.device): where batches go
        pixels (optional): a pixel store, for images
        augment (Augment, optional): for images
        train_augment (bool): False uses the centre crop in training too, as the authors' code does for the target
        show_labels (bool): whether training batches carry labels; never for the target
    """

    def __init__(
        self,
        view: Any,
        device: torch.device,
        pixels: Optional[PixelStore] = None,
        augment: Optional[Augment] = None,
        train_augment: bool = True,
        show_labels: bool = False,
    ):
        self.view, self.device, self.pixels, self.augment = view, device, pixels, augment
        self.train_augment = train_augment
        self.features: Optional[Tensor] = None
        if pixels is None:
            self.features = torch.from_numpy(view.features).to(device)
        self._below: Optional[Callable[[Tensor], Tensor]] = None
        self._views, self._maps = 1, cast(Optional[StoredMaps], None)
        self._orders: Dict[Tuple[int, int, int], List[np.ndarray]] = {}
        self._labels = torch.from_numpy(view.targets).to(device) if show_labels else None

    def __len__(self) -> int:
        return len(self.view)

    def use_features(self, features: Tensor) -> None:
        """From now on the inputs are these frozen features, in list order."""
        self.features = features.to(self.device)

    def use_maps(self, below: Callable[[Tensor], Tensor], views: int, stored: Optional[StoredMaps] = None) -> None:
        """From now on the inputs are what a frozen network makes of ``views`` fixed views of the images.

        Args:
            below (callable): images to float16 maps
            views (int): a training batch has one of them for each image; everything else sees the first, the centre
            stored (StoredMaps, optional): its results; computed for every batch where they are not stored
        """
        self._below, self._views, self._maps = below, views, stored

    @property
    def part_frozen(self) -> bool:
        """Whether the inputs are maps of a frozen part of a network, and the rest of it is trained."""
        return self._below is not None

    def use_labels(self, labels: np.ndarray) -> None:
        """From now on training batches carry these labels, in list order."""
        self._labels = torch.from_numpy(labels).to(self.device)

    def train_batches(self, steps: Steps) -> Iterator[Batch]:
        """The training batches of ``steps``, one after the other."""
        stream: Optional[Iterator[Tensor]] = None
        if self.features is None and self._maps is None:
            pixels, _ = self.images()
            stream = ahead(pixels.stream(cast(Sequence[np.ndarray], steps)), self.device)
        for position in range(len(steps)):
            chosen, step = steps[position], steps.start + position
            index = torch.from_numpy(chosen).to(self.device, non_blocking=True)
            if self.features is not None:
                x = self.features[index]
            elif self._below is not None:
                x = self._frozen(None if stream is None else next(stream), chosen, step)
            elif stream is not None:
                augment, rows = self.images()[1], next(stream)
                x = augment(rows, step, chosen) if self.train_augment else augment.centre(rows)
            yield Batch(x, None if self._labels is None else self._labels[index], index)

    def _frozen(self, rows: Optional[Tensor], chosen: np.ndarray, step: Optional[int] = None) -> Tensor:
        """What the frozen network makes of some images in the view of a step, without a step in the first one."""
        assert self._below is not None
        augment, views = self.images()[1], np.zeros(len(chosen), dtype=np.int64)
        if step is not None and self._views > 1:
            views = augment.pick(self._views, step, chosen)
        if self._maps is not None:
            return self._maps.rows(chosen, views).to(self.device)
        assert rows is not None
        return self._below(augment.view(rows, views, chosen)).float()

    def images(self) -> Tuple[PixelStore, Augment]:
        """The pixels and their augmentation, of a domain of images."""
        if self.pixels is None or self.augment is None:
            raise ValueError("a domain of features has no images")
        return self.pixels, self.augment

    def in_order(self, batch: int, rank: int = 0, world: int = 1) -> Iterator[Tuple[np.ndarray, Tensor]]:
        """Indices and inputs of this process's share of the domain, without augmentation."""
        if (batch, rank, world) not in self._orders:
            mine = np.array_split(np.arange(len(self)), world)[rank]
            self._orders[batch, rank, world] = [mine[start : start + batch] for start in range(0, len(mine), batch)]
        yield from self.read(self._orders[batch, rank, world])

    def read(self, chunks: Sequence[np.ndarray]) -> Iterator[Tuple[np.ndarray, Tensor]]:
        """Lists of indices and their inputs, without augmentation."""
        if self.features is not None:
            yield from ((chunk, self.features[torch.from_numpy(chunk).to(self.device)]) for chunk in chunks)
            return
        if self._maps is not None:
            yield from ((chunk, self._frozen(None, chunk)) for chunk in chunks)
            return
        pixels, augment = self.images()
        for chunk, rows in zip(chunks, ahead(pixels.stream(chunks), self.device)):
            yield chunk, augment.centre(rows) if self._below is None else self._frozen(rows, chunk)


def ahead(rows: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    """``rows`` on ``device``; CUDA copies each one from pinned memory while its predecessor is computed with."""
    if device.type != "cuda":
        yield from (batch.to(device) for batch in rows)
        return
    side, waiting = torch.cuda.Stream(device), None
    for batch in rows:
        with torch.cuda.stream(side):
            moved, copied = batch.pin_memory().to(device, non_blocking=True), torch.cuda.Event()
            copied.record(side)
        if waiting is not None:
            yield _handed_over(*waiting)
        waiting = moved, copied
    if waiting is not None:
        yield _handed_over(*waiting)


def _handed_over(moved: Tensor, copied: Any) -> Tensor:
    current = torch.cuda.current_stream(moved.device)
    current.wait_event(copied)
    moved.record_stream(current)  # its memory is not given to the next copy before this stream is done with it
    return moved
