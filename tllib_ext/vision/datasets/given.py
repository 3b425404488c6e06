"""Two domains that the caller built: image lists of tllib's form, or arrays with labels."""

import hashlib
from typing import List, Optional, Sequence, Tuple, cast

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.typing import Record
from tllib_ext.vision.datasets.builder import Data, split_by_classes
from tllib_ext.vision.datasets.types import ImageListLike, Sample

__all__ = ["ArrayList", "OBJECTS", "as_image_list", "data_of", "list_record"]

#: the name of the data set, in the settings of a run, where the caller built it
OBJECTS = "objects"


class ArrayList:
    """Rows of features, or images, with their labels, as an image list.

    Args:
        x (array): features :math:`(N, D)`, or images :math:`(N, H, W, 3)` uint8
        y (array-like, optional): a label for each, of any kind that can be sorted; None for an unlabelled
            target

    Examples::

        >>> ArrayList(np.zeros((2, 4)), ["owl", "cat"]).samples
        [('row:0', 1), ('row:1', 0)]
    """

    def __init__(self, x: ArrayLike, y: Optional[ArrayLike] = None):
        values = np.asarray(x)
        self.features: Optional[np.ndarray] = None
        self._images: Optional[np.ndarray] = None
        if values.ndim == 2 and values.dtype.kind in "fiu" and values.size:
            self.features = np.ascontiguousarray(values, dtype=np.float32)
            if not np.isfinite(self.features).all():
                raise UserError("the features hold NaN or infinite values, or some beyond float32")
        elif values.ndim == 4 and values.shape[3] == 3 and values.dtype == np.uint8 and values.size:
            self._images = values
        else:
            expected = "features (N, D), or images (N, H, W, 3) uint8"
            raise UserError(f"an array of shape {values.shape} {values.dtype}: expected {expected}")
        self.classes: List[str] = []
        labels: List[Optional[int]] = [None] * len(values)
        if y is not None:
            names = np.asarray(y)
            if names.shape != (len(values),):
                raise UserError(f"{len(values)} rows, but labels of shape {names.shape}: expected one label for each row")
            unique, indices = np.unique(names, return_inverse=True)
            self.classes, labels = [str(name) for name in unique], indices.tolist()
        self.samples: List[Sample] = [(f"row:{row}", label) for row, label in enumerate(labels)]

    def loader(self, path: str) -> Image.Image:
        """The image ``row:N``."""
        if self._images is None:
            raise UserError(f"these are features: there is no image {path} to read")
        return Image.fromarray(self._images[int(path.removeprefix("row:"))])

    def __len__(self) -> int:
        return len(self.samples)

    def digest(self) -> str:
        """Of the numbers and labels."""
        values = self.features if self._images is None else self._images
        made = hashlib.sha256(repr((None if values is None else values.shape, self.classes, self.samples)).encode())
        made.update(np.ascontiguousarray(values).data)
        return made.hexdigest()[:16]


def as_image_list(given: object, role: str) -> ImageListLike:
    """What the caller passed as source or target, checked.

    Args:
        given: a list with ``samples``, ``classes`` and ``loader`` (tllib's ``ImageList``, torchvision's
            ``ImageFolder``), an array, or a pair of an array and labels
        role (str): "source" or "target", for messages
    """
    if isinstance(given, np.ndarray):
        given = (given, None)
    if isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "__array__"):
        given = ArrayList(*given)
    lacking = [name for name in ("samples", "classes", "loader") if not hasattr(given, name)]
    if lacking:
        raise UserError(
            f"the {role} is {type(given).__module__}.{type(given).__qualname__} without {', '.join(lacking)}: expected a list "
            "with samples, classes and loader (tllib's ImageList, torchvision's ImageFolder), or arrays (X, y)"
        )
    images = cast(ImageListLike, given)
    samples = list(images.samples)
    if not samples:
        raise UserError(f"the {role} is an empty list: expected images")
    good = range(len(images.classes))
    for sample in samples:
        if len(sample) != 2 or (sample[1] is not None and (isinstance(sample[1], str) or int(sample[1]) not in good)):
            expected = f"(path, label) with a label in 0…{len(images.classes) - 1}, or None for an unlabelled target"
            raise UserError(f"the {role} has the sample {sample!r}: expected {expected}")
    return images


def data_of(pair: object, source_name: Optional[str] = None, target_name: Optional[str] = None) -> Data:
    """Source and target of a run from the caller's pair; the split follows from the names of the classes.

    Args:
        pair: (source, target), each as :func:`as_image_list` takes it
        source_name (str, optional), target_name (str, optional): of the domains. Default: "source", "target"

    Examples::

        >>> x = np.eye(4)
        >>> data = data_of(((x, ["ant", "bee", "ant", "bee"]), (x, ["ant", "bee", "cow", "cow"])))
        >>> str(data.split), data.is_features
        ('2/0/1', True)
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise UserError(f"data is {type(pair).__name__}: expected a pair (source, target)")
    source, target = (as_image_list(given, role) for given, role in zip(pair, ("source", "target")))
    widths = [None if getattr(x, "features", None) is None else x.features.shape[1] for x in (source, target)]  # type: ignore[attr-defined]
    if widths[0] != widths[1]:
        kinds = ["images" if width is None else f"{width} features" for width in widths]
        raise UserError(f"the source holds {kinds[0]}, the target {kinds[1]}: expected the same of both")
    names = source_name or "source", target_name or "target"
    if any(label is None for _, label in source.samples):
        raise UserError("the source needs labels: expected a label for every sample, found None")
    return Data(OBJECTS, *names, source, target, split=split_by_classes(source, target))


def list_record(dataset: ImageListLike) -> Record:
    """What a run writes down of an image list: class, length, classes, and a digest of samples or numbers."""
    root = str(getattr(dataset, "root", None) or "")  # the same list in another folder is the same list
    digest = dataset.digest() if isinstance(dataset, ArrayList) else _samples_digest(dataset.samples, root)
    return {"class": f"{type(dataset).__module__}.{type(dataset).__qualname__}", "length": len(dataset.samples),
            "classes": [str(name) for name in dataset.classes], "digest": digest}  # fmt: skip


def _samples_digest(samples: Sequence[Tuple[str, Optional[int]]], root: str) -> str:
    text = "\n".join(f"{str(path).removeprefix(root)} {label}" for path, label in samples)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
