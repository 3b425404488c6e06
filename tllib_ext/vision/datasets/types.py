"""What image lists, views and pixel stores have in common. Any class with these members will do; none needs to inherit."""

from typing import TYPE_CHECKING, Callable, Iterator, Optional, Protocol, Sequence, Tuple, Union

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

    from tllib_ext.split import LabelSplit

__all__ = ["Sample", "Loader", "ImageListLike", "ImageView", "View", "PixelStore"]

#: path and label; None in an unlabelled list.
Sample = Tuple[str, Optional[int]]
#: reads one image.
Loader = Callable[[str], "Image"]


class ImageListLike(Protocol):
    """A data set by tllib's convention, which torchvision's ``ImageFolder`` follows too.

    A list of frozen features has an array ``features`` as well, and no images for its loader to read.
    """

    @property
    def samples(self) -> Sequence[Sample]:
        """Path and label of every image."""

    @property
    def classes(self) -> Sequence[str]:
        """Name of every label."""

    @property
    def loader(self) -> Loader:
        """Reads one image."""

    def __len__(self) -> int: ...


class ImageView(Protocol):
    """The part of a view that a pixel store needs."""

    @property
    def paths(self) -> Sequence[str]:
        """Every image file, in list order."""

    @property
    def loader(self) -> Loader:
        """Reads one of them."""

    def path(self, index: int) -> str:
        """The file of sample ``index``."""

    def __len__(self) -> int: ...


class View(ImageView, ImageListLike, Protocol):
    """A domain with the labels of a split: ``UniversalView``, ``NoisyLabels``, or a wrapper around one of them."""

    @property
    def split(self) -> "LabelSplit":
        """The label sets."""

    @property
    def role(self) -> str:
        """``"source"`` or ``"target"``."""

    @property
    def targets(self) -> "Optional[np.ndarray]":
        """Label of every sample; None for an unlabelled target."""

    @property
    def features(self) -> "Optional[np.ndarray]":
        """Frozen features in list order, None for images."""

    def __getitem__(self, index: int) -> "Tuple[Union[Image, np.ndarray], Optional[int]]": ...


class PixelStore(Protocol):
    """Decoded images of a view."""

    def __len__(self) -> int: ...

    def rows(self, index: "Union[Sequence[int], np.ndarray]") -> "Tensor":
        """Some images, :math:`(N, R, R, 3)` uint8."""

    def stream(self, batches: "Sequence[np.ndarray]") -> "Iterator[Tensor]":
        """:meth:`rows` of every batch in order."""
