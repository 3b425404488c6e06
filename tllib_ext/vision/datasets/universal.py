"""A data set seen through a label split."""

from typing import Any, Callable, List, Optional, Tuple

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit

__all__ = ["UniversalView"]


class UniversalView:
    r"""The source's or the target's part of a data set, with the labels of a :class:`LabelSplit`.

    Works with anything that has ``samples`` (path and label), ``classes`` and ``loader``: tllib's ``ImageList`` family,
    torchvision's ``ImageFolder``, our readers. Labels are read from ``samples``, never from ``targets``, which tllib
    leaves stale. The list's order is kept: the authors' noise draw depends on it.

    Args:
        dataset: the image list
        split (LabelSplit): which classes are whose
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

    def __init__(self, dataset: Any, split: LabelSplit, role: str, transform: Optional[Callable] = None):
        if role not in ("source", "target"):
            raise UserError(f"role {role!r}: expected source or target")
        self.dataset, self.split, self.role, self.transform = dataset, split, role, transform
        labels = [sample[1] for sample in dataset.samples]
        #: labels of the split by position; None for an unlabelled target
        self.targets: Optional[np.ndarray] = None
        if any(label is None for label in labels):
            if role == "source":
                raise UserError("the source needs labels: expected <source>/<class>/<image>, found images without classes")
            self.indices = np.arange(len(labels))
            return
        index_of = split.source_index if role == "source" else split.target_index
        new = [index_of(name) for name in dataset.classes]
        taken = np.array([label is not None for label in new], dtype=bool)
        lut = np.array([0 if label is None else label for label in new], dtype=np.int64)
        old = np.fromiter(labels, dtype=np.int64, count=len(labels))
        self.indices = np.flatnonzero(taken[old])
        self.targets = lut[old[self.indices]]
        if role == "source":
            names = split.source_classes
            empty = [names[k] for k in np.flatnonzero(np.bincount(self.targets, minlength=len(names)) == 0)]
            if empty:
                some = ", ".join(empty[:8]) + (" …" if len(empty) > 8 else "")
                raise UserError(f"no source image of: {some}; check -s and --split")
        if not len(self.indices):
            raise UserError("no target image belongs to the split; check -t and --split")

    def path(self, index: int) -> str:
        """Where sample ``index`` comes from."""
        return self.dataset.samples[self.indices[index]][0]

    @property
    def paths(self) -> List[str]:
        """All of them."""
        samples = self.dataset.samples
        return [samples[i][0] for i in self.indices]

    @property
    def samples(self) -> List[Tuple[str, Optional[int]]]:
        """Path and new label, as tllib's lists have them."""
        labels = [None] * len(self) if self.targets is None else self.targets.tolist()
        return list(zip(self.paths, labels))

    @property
    def classes(self) -> Tuple[str, ...]:
        """Names of the labels."""
        return self.split.source_classes if self.role == "source" else self.split.label_names

    @property
    def num_classes(self) -> int:
        """How many there are."""
        return len(self.classes)

    @property
    def loader(self) -> Any:
        """The data set's."""
        return self.dataset.loader

    @property
    def features(self) -> Optional[np.ndarray]:
        """Frozen features in this view's order, where the data set has them."""
        rows = getattr(self.dataset, "features", None)
        return None if rows is None else rows[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Tuple[Any, Optional[int]]:
        if getattr(self.dataset, "features", None) is not None:
            item = self.dataset.features[self.indices[index]]
        else:
            item = self.loader(self.path(index))
        if self.transform is not None:
            item = self.transform(item)
        return item, None if self.targets is None else int(self.targets[index])
