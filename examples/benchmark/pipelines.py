"""Batches of photographs, plainly and by this package: one image at a time with Pillow, or from decoded pixels at once."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from benchmark.scenes import OurStep, PlainStep
from tllib_ext import compat
from tllib_ext.images import load_image
from tllib_ext.training.domain import Domain, Steps
from tllib_ext.training.predict import predict_domain
from tllib_ext.vision.datasets.pixels import DiskPixels
from tllib_ext.vision.transforms import MEAN, STD, Augment

__all__ = ["Photos", "PlainData", "OurData", "PlainEvaluation", "OurEvaluation", "photographs", "write_photographs"]

RESIZE, CROP = 256, 224


class Photos:
    """The least that a pixel store asks of a view: names and how to open them."""

    def __init__(self, paths: Sequence[str]):
        self.paths, self.loader = list(paths), load_image

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> str:
        """Where image ``index`` is."""
        return self.paths[index]


def photographs(folder: Path, limit: int) -> List[str]:
    """At most ``limit`` images below a folder, evenly spread over it."""
    found = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    step = max(1, len(found) // limit)
    return found[::step][:limit]


def write_photographs(folder: Path, size: int, number: int) -> List[str]:
    """JPEG files of coloured clouds, for who has no photographs; of ``size`` x ``size`` pixels."""
    from PIL import Image

    rng = np.random.default_rng(size)
    folder.mkdir(parents=True)
    for i in range(number):
        coarse = Image.fromarray(rng.integers(0, 255, (size // 8, size // 8, 3), dtype=np.uint8))
        coarse.resize((size, size), Image.Resampling.BICUBIC).save(folder / f"{i:04}.jpg", quality=90)
    return photographs(folder, number)


def chosen(total: int, batch: int) -> Any:
    """Step -> positions of a batch: all images in turn."""
    return lambda step: (np.arange(batch) + step * batch) % total


class PlainData:
    """The authors' pipeline: torchvision's transforms on one Pillow image after the other.

    Args:
        paths (list of str): the images
        batch (int): per batch
        threads (int): of PyTorch, 0 leaves it alone
    """

    def __init__(self, paths: Sequence[str], batch: int = 36, threads: int = 0):
        if threads:
            torch.set_num_threads(threads)
        t = compat.torchvision().transforms
        last = [t.ToTensor(), t.Normalize(MEAN, STD)]
        self.paths, self.chosen = list(paths), chosen(len(paths), batch)
        self.train = t.Compose([t.Resize((RESIZE, RESIZE)), t.RandomHorizontalFlip(), t.RandomCrop(CROP), *last])
        self.test = t.Compose([t.Resize((RESIZE, RESIZE)), t.CenterCrop(CROP), *last])

    def load(self, path: str, transform: Any) -> Tensor:
        """One image."""
        from PIL import Image

        with open(path, "rb") as file:
            return transform(Image.open(file).convert("RGB"))

    def run(self, batches: int, first: int = 0) -> None:
        """Some training batches."""
        for step in range(first, first + batches):
            torch.stack([self.load(self.paths[i], self.train) for i in self.chosen(step)])

    def everything(self, threads: int = 1) -> None:
        """Every image once; the authors' pipeline has no threads."""
        for path in self.paths:
            self.load(path, self.train)

    def sample(self) -> np.ndarray:
        """The first batch as tests see it, without augmentation."""
        return torch.stack([self.load(self.paths[i], self.test) for i in self.chosen(0)]).numpy()


class OurData(PlainData):
    """This package's: decoded pixels in a file, crop, flip and normalisation of a batch at once.

    Args:
        folder (str): the cache's
    """

    def __init__(self, paths: Sequence[str], folder: str, batch: int = 36, threads: int = 0):
        if threads:
            torch.set_num_threads(threads)
        self.view, self.folder, self.chosen = Photos(paths), Path(folder), chosen(len(paths), batch)
        self.domain = Domain(self.view, torch.device("cpu"), DiskPixels(self.view, RESIZE, self.folder), Augment(CROP))

    def run(self, batches: int, first: int = 0) -> None:
        for _ in self.domain.train_batches(Steps(self.chosen, first, first + batches)):
            pass

    def everything(self, threads: int = 1) -> None:
        """Build the cache anew."""
        with tempfile.TemporaryDirectory(dir=self.folder) as fresh:
            DiskPixels(self.view, RESIZE, Path(fresh), threads)

    def sample(self) -> np.ndarray:
        return self.domain.augment.centre(self.domain.pixels.rows(self.chosen(0))).numpy()

    def clear(self) -> None:
        """Remove the cache."""
        shutil.rmtree(self.folder, ignore_errors=True)


class PlainEvaluation(PlainStep):
    """Classes and scores of all photographs by the longhand loop: Pillow, batches of 36."""

    def __init__(self, paths: Sequence[str], chunk: int = 36, **scene: Any):
        super().__init__(**scene)
        self.data, self.size = PlainData(paths), chunk
        self.net.eval()

    def inputs(self) -> Iterator[Tensor]:
        """Batches of images."""
        for start in range(0, len(self.data.paths), self.size):
            some = self.data.paths[start : start + self.size]
            yield torch.stack([self.data.load(path, self.data.test) for path in some]).to(self.scene.device)

    def evaluate(self) -> Tuple[np.ndarray, np.ndarray]:
        """Class and score of every image."""
        made = [self.loop.evaluate(x) for x in self.inputs()]
        return tuple(torch.cat(column).cpu().numpy() for column in zip(*made))


class OurEvaluation(OurStep):
    """Classes and scores of all photographs by this package, from the cache."""

    def __init__(self, paths: Sequence[str], folder: str, **scene: Any):
        super().__init__(**scene)
        view, device = Photos(paths), torch.device(self.scene.device)
        self.domain = Domain(view, device, DiskPixels(view, RESIZE, Path(folder)), Augment(CROP))

    def evaluate(self) -> Tuple[np.ndarray, np.ndarray]:
        """Class and score of every image."""
        prediction = predict_domain(self.method, self.domain)
        return prediction.probs.argmax(1), prediction.score
