r"""Changes of the source list itself: images of no class that have labels of known classes, and a long tail."""

import copy
from typing import List, Optional, Tuple, Union, cast

import numpy as np
from PIL.Image import Image

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.imagelist import FeatureList, ImageFolder
from tllib_ext.vision.datasets.noises import symmetric
from tllib_ext.vision.datasets.types import ImageListLike
from tllib_ext.vision.datasets.universal import UniversalView

__all__ = ["OpenSetView", "open_set", "long_tail"]


class OpenSetView:
    """A source view with further images that are of no source class: their true label is ``split.unknown``.

    Args:
        view (UniversalView): the source
        kept (array): positions of its images that stay
        foreign (ImageListLike): where the further images come from
        chosen (array): positions of the further images there
        given (array): labels of the kept and then of the further images
        transition (array): transition matrix of the kept images
    """

    def __init__(
        self, view: UniversalView, kept: np.ndarray, foreign: ImageListLike, chosen: np.ndarray, given: np.ndarray,
        transition: np.ndarray,
    ):  # fmt: skip
        self.split, self.role, self.classes, self.loader = view.split, view.role, view.classes, view.loader
        self.given, self.transition = given, transition
        known = view.subset(kept)
        self.paths: List[str] = known.paths + [foreign.samples[i][0] for i in chosen.tolist()]
        self.targets: np.ndarray = np.r_[known.targets, np.full(len(chosen), view.split.unknown)]
        self.features: Optional[np.ndarray] = None
        if known.features is not None:
            self.features = np.concatenate([known.features, _features(foreign)[chosen]])

    def subset(self, chosen: np.ndarray) -> "OpenSetView":
        """The same view of the images at the positions ``chosen``."""
        part = copy.copy(self)
        part.paths, part.targets, part.given = [self.paths[i] for i in chosen], self.targets[chosen], self.given[chosen]
        part.features = None if self.features is None else self.features[chosen]
        return part

    def path(self, index: int) -> str:
        """The file of sample ``index``."""
        return self.paths[index]

    @property
    def samples(self) -> List[Tuple[str, int]]:
        """Path and true label."""
        return list(zip(self.paths, self.targets.tolist()))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tuple[Union[Image, np.ndarray], Optional[int]]:
        return self.loader(self.path(index)) if self.features is None else self.features[index], int(self.targets[index])


def _features(dataset: ImageListLike) -> np.ndarray:
    return cast(FeatureList, dataset).features


def open_set(
    rate: float, view: UniversalView, random_state: np.random.RandomState, *, images: str = "", replace: int = 0,
    closed: float = 0.0,
) -> OpenSetView:  # fmt: skip
    r"""Images of no source class with labels of source classes, a share ``rate`` of the list.

    To the :math:`n_k` images of class k come :math:`\lceil n_k \rho / (1 - \rho) \rceil` foreign images.

    Args:
        rate (float): :math:`\rho`, share of wrong labels
        view (UniversalView): the source
        random_state (RandomState): chooses the images
        images (str): folder of foreign images, or ``.npz`` file of foreign features. Default: the images of the source
            domain whose class is no source class, which in the benchmarks are the target-private classes
        replace (int): 1 gives every image's place to a foreign one with probability ``rate`` instead of adding images
        closed (float): share of ``rate`` that is symmetric noise between the source classes
    """
    split = view.split
    if not 0 <= closed <= 1:
        raise UserError(f"closed={closed}: expected a share of the rate in [0, 1]")
    clean, share = np.asarray(view.targets), rate * (1 - closed)
    foreign, pool = _pool(view, images)
    if replace:
        replaced = random_state.random_sample(len(clean)) < share
        kept, labels = np.flatnonzero(~replaced), clean[replaced]
    else:
        counts = np.ceil(np.bincount(clean, minlength=split.num_source) * share / (1 - share) - 1e-9).astype(int)
        kept, labels = np.arange(len(clean)), np.repeat(np.arange(split.num_source), counts)
    if len(labels) > len(pool):
        place = images or "the source domain"
        raise UserError(
            f"rate {rate}: {len(labels)} images of no class are needed, {place} has {len(pool)}: lower the rate, replace"
            " images (option replace=1), or name a larger set (option images=DIR)"
        )
    chosen = random_state.permutation(pool)[: len(labels)]
    transition = symmetric(min(rate * closed / (1 - share), 1.0), split.num_source)
    given = clean[kept]
    wrong = random_state.random_sample(len(kept)) < rate * closed / (1 - share)
    given[wrong] = (given[wrong] + random_state.randint(1, split.num_source, wrong.sum())) % split.num_source
    return OpenSetView(view, kept, foreign, chosen, np.r_[given, labels], transition)


def _pool(view: UniversalView, images: str) -> Tuple[ImageListLike, np.ndarray]:
    """The list that foreign images come from, and their positions in it."""
    if images:
        foreign: ImageListLike = FeatureList(images) if view.features is not None else ImageFolder(images)
        if view.features is not None and _features(foreign).shape[1] != view.features.shape[1]:
            widths = f"{_features(foreign).shape[1]} wide, those of the source {view.features.shape[1]}"
            raise UserError(f"the features in {images} are {widths}: expected one backbone")
        return foreign, np.arange(len(foreign.samples))
    names = view.dataset.classes
    outside = [i for i, (_, label) in enumerate(view.dataset.samples) if view.split.source_index(names[int(label or 0)]) is None]
    if not outside:
        remedy = "name a folder of other images, or an .npz file of other features (option images=PATH)"
        raise UserError(f"every class of the source domain is a source class, so it has no images of no class: {remedy}")
    return view.dataset, np.array(outside)


def long_tail(view: UniversalView, ratio: float, seed: int = 0) -> UniversalView:
    r"""A part of a source view whose class sizes fall exponentially, :math:`n_k = n_{max} r^{k/(K-1)}`.

    The order of the classes and the images that stay are drawn by ``seed``; a class keeps at most what it has, and at
    least one image.

    Args:
        view (UniversalView): the source
        ratio (float): r, size of the smallest class as a share of the largest, in (0, 1]
        seed (int): of the draw
    """
    if not 0 < ratio <= 1:
        raise UserError(f"long_tail={ratio}: expected a share in (0, 1], the smallest class relative to the largest")
    clean, rng, count = np.asarray(view.targets), np.random.RandomState(seed), view.split.num_source
    largest = np.bincount(clean, minlength=count).max()
    kept = []
    for place, k in enumerate(rng.permutation(count)):
        size = max(1, round(largest * ratio ** (place / (count - 1))))
        kept.append(rng.permutation(np.flatnonzero(clean == k))[:size])
    return view.subset(np.sort(np.concatenate(kept)))
