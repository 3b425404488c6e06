"""One domain of a data set with the labels of a split."""

import copy
from typing import Any, Callable, List, Optional, Tuple, Union

import numpy as np
from PIL.Image import Image

from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets.types import ImageListLike

__all__ = ["UniversalView"]


class UniversalView:
    r"""The source's or the target's part of a data set, with the labels of a :class:`LabelSplit`.

    ``dataset`` is anything with ``samples`` (path and label), ``classes`` and ``loader``: tllib's ``ImageList`` family,
    torchvision's ``ImageFolder``, our readers. Labels are read from ``samples``, not from ``targets``, which tllib does
    not keep up to date. The order of the list is kept: the authors' noise draw depends on it.

    Args:
        dataset (ImageListLike): the images
        split (LabelSplit): the label sets
        role (str): ``"source"`` or ``"target"``
        transform (callable, optional): applied to the image in ``__getitem__``

    Examples::

        >>> class Pets:
        ...     samples = [("d.png", 2), ("a.png", 0), ("c.png", 1), ("e.png", 3)]
        ...     classes, loader = ["ant", "cat", "dog", "eel"], str.upper
        >>> split = LabelSplit(["dog"], ["ant"], ["eel", "cat"])
        >>> UniversalView(Pets, split, "source").samples, UniversalView(Pets, split, "target").samples
        ([('d.png', 0), ('a.png', 1)], [('d.png', 0), ('c.png', 2), ('e.png', 2)])
    """

    def __init__(self, dataset: ImageListLike, split: LabelSplit, role: str, transform: Optional[Callable] = None):
        if role not in ("source", "target"):
            raise UserError(f"role {role!r}: expected source or target")
        self.dataset, self.split, self.role, self.transform, self.loader = dataset, split, role, transform, dataset.loader
        #: names of the labels
        self.classes = split.source_classes if role == "source" else split.label_names
        labels = [sample[1] for sample in dataset.samples]
        #: labels of the split by position; None for an unlabelled target
        self.targets: Optional[np.ndarray] = None
        if any(label is None for label in labels):
            if role == "source":
                raise UserError("the source needs labels: expected <source>/<class>/<image>, found images without classes")
            self.indices = np.arange(len(labels))
            return
        index_of = split.source_index if role == "source" else split.target_index
        new = [-1 if index_of(name) is None else index_of(name) for name in dataset.classes]
        relabelled = np.array(new, dtype=np.int64)[np.array(labels, dtype=np.int64)]
        self.indices = np.flatnonzero(relabelled >= 0)
        self.targets = relabelled[self.indices]
        empty = [name for label, name in enumerate(split.source_classes) if not (self.targets == label).any()]
        if empty and role == "source":
            some = ", ".join(empty[:8]) + (" …" if len(empty) > 8 else "")
            raise UserError(f"no source image of: {some}; check source and split")
        if not len(self.indices):
            raise UserError("no target image is of a class of the split; check target and split")

    def subset(self, chosen: np.ndarray) -> "UniversalView":
        """The same view of the images at the positions ``chosen``."""
        part = copy.copy(self)
        part.indices, part.targets = self.indices[chosen], None if self.targets is None else self.targets[chosen]
        return part

    def path(self, index: int) -> str:
        """The file of sample ``index``."""
        return self.dataset.samples[int(self.indices[index])][0]

    @property
    def paths(self) -> List[str]:
        """The file of every sample."""
        return [self.dataset.samples[i][0] for i in self.indices.tolist()]

    @property
    def classes_of_dataset(self) -> np.ndarray:
        """The data set's own label of every sample, which tells the classes apart that the split calls unknown."""
        return np.array([self.dataset.samples[i][1] for i in self.indices.tolist()], dtype=np.int64)

    @property
    def samples(self) -> List[Tuple[str, Optional[int]]]:
        """Path and new label, as tllib's lists have them."""
        labels = [None] * len(self) if self.targets is None else self.targets.tolist()
        return list(zip(self.paths, labels))

    @property
    def features(self) -> Optional[np.ndarray]:
        """Frozen features in list order, None for images."""
        rows = getattr(self.dataset, "features", None)
        return None if rows is None else rows[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Tuple[Union[Image, np.ndarray], Optional[int]]:
        rows = getattr(self.dataset, "features", None)
        item: Any = self.loader(self.path(index)) if rows is None else rows[self.indices[index]]
        item = item if self.transform is None else self.transform(item)
        return item, None if self.targets is None else int(self.targets[index])
