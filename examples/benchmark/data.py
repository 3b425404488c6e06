"""Batches of photographs: one image at a time by Pillow and torchvision, and from this package's cache of decoded pixels."""

import numpy as np
import torch

from tllib_ext import compat
from tllib_ext.split import LabelSplit
from tllib_ext.training.domain import Domain, Steps
from tllib_ext.vision.datasets.imagelist import ImageFolder
from tllib_ext.vision.datasets.pixels import RamPixels
from tllib_ext.vision.datasets.universal import UniversalView
from tllib_ext.vision.transforms import MEAN, STD, Augment

__all__ = ["PillowData", "CachedData"]

RESIZE, CROP = 256, 224


class PillowData:
    """torchvision's folder and transforms and PyTorch's loader, as in the authors' code.

    Args:
        images (str): folder of class folders
        batch (int): images per batch
    """

    def __init__(self, images: str, batch: int):
        t = compat.torchvision().transforms
        augment = [t.Resize((RESIZE, RESIZE)), t.RandomHorizontalFlip(), t.RandomCrop(CROP), t.ToTensor(), t.Normalize(MEAN, STD)]
        self.data = compat.torchvision().datasets.ImageFolder(images, t.Compose(augment))
        self.batch = batch

    def run(self, batches: int) -> None:
        """Make some training batches of random images."""
        loader = iter(torch.utils.data.DataLoader(self.data, self.batch, shuffle=True))
        for _ in range(batches):
            next(loader)


class CachedData:
    """Pixels decoded once into memory; crop, flip and normalisation of a batch at once. Arguments as of :class:`PillowData`."""

    def __init__(self, images: str, batch: int):
        folder = ImageFolder(images)
        self.view = UniversalView(folder, LabelSplit(folder.classes, [], []), "source")
        self.batch = batch

    def build(self) -> int:
        """Decode all images, with one thread; returns their number."""
        self.domain = Domain(self.view, torch.device("cpu"), RamPixels(self.view, RESIZE, 1), Augment(CROP))
        return len(self.view)

    def run(self, batches: int) -> None:
        """Make some training batches of random images."""
        rng = np.random.default_rng(0)
        for _ in self.domain.train_batches(Steps(lambda step: rng.integers(len(self.view), size=self.batch), 0, batches)):
            pass
