r"""Images to tensors, in two parts.

Per image, once: decode and resize to a square of uint8 pixels (DANCE and its successors resize to exactly 256 x 256
without keeping the aspect ratio). Per batch, on the training device: crop, flip and normalise. The augmentation of an
image is a function of (seed, step, index): the number of workers and earlier batches have no influence.
"""

from typing import Sequence, Tuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tllib_ext.images import as_rgb

__all__ = ["MEAN", "STD", "decode", "Augment"]

#: ImageNet's channel statistics, with which torchvision's backbones were trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def decode(image: Image.Image, resize: int) -> np.ndarray:
    """A PIL image as :math:`(R, R, 3)` uint8 pixels, bilinear."""
    return np.asarray(as_rgb(image).resize((resize, resize), Image.Resampling.BILINEAR), dtype=np.uint8)


Words = TypeVar("Words", np.uint64, np.ndarray)


def _mix(x: Words) -> Words:
    """splitmix64's finaliser: a counter-based random number that numpy computes for a whole batch at once."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Augment:
    r"""Random crop and horizontal flip of a batch, then normalisation; or the centre crop.

    Args:
        crop (int): side of the result
        flip (bool): flip half of the images in training
        seed (int), domain (int): the run's seed, and a number that makes the two domains' augmentations differ
        mean, std (sequence of float): of the channels of the backbone's pretraining images

    Shape:
        - rows: :math:`(N, R, R, 3)` uint8
        - Outputs: :math:`(N, 3, C, C)` float32, channels-last in memory

    Examples::

        >>> rows = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
        >>> augment = Augment(crop=6)
        >>> augment(rows, step=0, index=np.array([0, 1])).shape, augment.centre(rows).shape
        (torch.Size([2, 3, 6, 6]), torch.Size([2, 3, 6, 6]))
    """

    def __init__(
        self, crop: int, flip: bool = True, seed: int = 0, domain: int = 0,
        mean: Sequence[float] = MEAN, std: Sequence[float] = STD,
    ):  # fmt: skip
        self.crop, self.flip, self.seed, self.domain = crop, flip, seed, domain
        self._scale = torch.tensor([1 / (255 * s) for s in std]).repeat(crop)
        self._shift = torch.tensor([-m / s for m, s in zip(mean, std)]).repeat(crop)

    def choices(self, slack: int, step: int, index: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Top, left and whether to flip, for every image of a batch."""
        return self._places(slack, self._numbers(self.seed, step, index))

    def pick(self, views: int, step: int, index: np.ndarray) -> np.ndarray:
        """Which of ``views`` fixed views each image of a batch shows in a step."""
        return ((self._numbers(self.seed, step, index) >> np.uint64(48)) % np.uint64(views)).astype(np.int64)

    def _numbers(self, seed: int, step: int, index: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            base = _mix(np.uint64(seed) * np.uint64(4) + np.uint64(self.domain) + np.uint64(1))
            base = _mix(base ^ np.uint64(step) * np.uint64(0x9E3779B97F4A7C15))
            return _mix(base ^ (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03))

    def _places(self, slack: int, numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        top = (numbers & np.uint64(0xFFFFFF)) % np.uint64(slack + 1)
        left = ((numbers >> np.uint64(24)) & np.uint64(0xFFFFFF)) % np.uint64(slack + 1)
        flip = (numbers >> np.uint64(63)).astype(bool) & self.flip
        return top.astype(np.int64), left.astype(np.int64), flip

    def __call__(self, rows: Tensor, step: int, index: np.ndarray) -> Tensor:
        crop = self._cut if rows.device.type == "cpu" else self._gather
        return self._normalise(crop(rows, *self.choices(rows.shape[1] - self.crop, step, np.asarray(index))))

    def view(self, rows: Tensor, number: np.ndarray, index: np.ndarray) -> Tensor:
        """Fixed views, of a number for each image: 0 is the centre, 1 the centre flipped, any other a crop of its own.

        They do not depend on the run's seed.
        """
        slack = rows.shape[1] - self.crop
        crops = [self._places(slack, self._numbers(0, int(n), np.asarray([i]))) for n, i in zip(number, index)]
        top, left, flip = (np.concatenate(column) for column in zip(*crops))
        centred = np.asarray(number) < 2
        top[centred] = left[centred] = slack // 2
        flip[centred] = (np.asarray(number)[centred] == 1) & self.flip
        return self._normalise((self._cut if rows.device.type == "cpu" else self._gather)(rows, top, left, flip))

    def _cut(self, rows: Tensor, top: np.ndarray, left: np.ndarray, flip: np.ndarray) -> Tensor:
        """Image by image: on a CPU, copying lines of pixels is many times faster than gathering single ones."""
        made = torch.empty(len(rows), self.crop, self.crop, 3)
        for image, row, y, x, turned in zip(made, rows, top.tolist(), left.tolist(), flip.tolist()):
            part = row[y : y + self.crop, x : x + self.crop]
            image.copy_(part.flip(1) if turned else part)
        return made

    def _gather(self, rows: Tensor, top: np.ndarray, left: np.ndarray, flip: np.ndarray) -> Tensor:
        """All images at once, for devices where every launch costs time."""
        span = np.arange(self.crop)
        columns = np.where(flip[:, None], span[::-1], span) + left[:, None]
        y, x = (torch.from_numpy(places).to(rows.device) for places in (top[:, None] + span, columns))
        batch = torch.arange(len(rows), device=rows.device)
        return rows[batch[:, None, None], y[:, :, None], x[:, None, :]]

    def centre(self, rows: Tensor) -> Tensor:
        """The centre crop, for evaluation."""
        edge = (rows.shape[1] - self.crop) // 2
        return self._normalise(rows[:, edge : edge + self.crop, edge : edge + self.crop])

    def _normalise(self, rows: Tensor) -> Tensor:
        self._scale, self._shift = self._scale.to(rows.device), self._shift.to(rows.device)
        # By lines, not by pixels: loops over three channels are too short to vectorise.
        lines = rows.float().reshape(*rows.shape[:2], -1)
        # (N, H, W, 3) seen as (N, 3, H, W) is channels-last already: no copy.
        return torch.addcmul(self._shift, lines, self._scale).view(rows.shape).permute(0, 3, 1, 2)
