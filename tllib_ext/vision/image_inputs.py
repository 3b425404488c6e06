"""Images as a caller has them, files, folders, PIL images or arrays, to the pixels that a network's augmentation takes."""

import os
from typing import Iterator, List, NamedTuple, Sequence, Union, cast

import numpy as np
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.typing import PathLike
from tllib_ext.vision.datasets.folder_files import files_below
from tllib_ext.vision.transforms import decode

__all__ = ["ImageInputs", "NamedPixels", "batched_pixels"]

OneImage = Union[PathLike, Image.Image, np.ndarray]
#: one image, a folder, or a list of both; an array of four dimensions is a list of images
ImageInputs = Union[OneImage, Sequence[OneImage]]


class NamedPixels(NamedTuple):
    """Some images: their files, or their numbers where they have none, and uint8 pixels :math:`(N, R, R, 3)`."""

    names: List[str]
    pixels: np.ndarray


def batched_pixels(images: ImageInputs, resize: int, size: int) -> Iterator[NamedPixels]:
    """At most ``size`` images at a time, resized to squares of side ``resize``.

    Args:
        images: files, folders (every image below), PIL images or uint8 arrays :math:`(H, W)` or :math:`(H, W, 3)`
        resize (int): side of the pixels
        size (int): images at a time

    Examples::

        >>> [chunk.pixels.shape for chunk in batched_pixels(np.zeros((3, 20, 30, 3), np.uint8), 8, 2)]
        [(2, 8, 8, 3), (1, 8, 8, 3)]
    """
    items = _listed(images)
    if not items:
        raise UserError("no images to predict: expected files, a folder with images, PIL images or arrays")
    for start in range(0, len(items), size):
        part = items[start : start + size]
        names = [os.fspath(item) if isinstance(item, (str, os.PathLike)) else str(start + i) for i, item in enumerate(part)]
        yield NamedPixels(names, np.stack([decode(_image(item), resize) for item in part]))


def _listed(images: ImageInputs) -> List[OneImage]:
    single = isinstance(images, (str, os.PathLike, Image.Image)) or (isinstance(images, np.ndarray) and images.ndim < 4)
    items: List[OneImage] = []
    for image in [cast(OneImage, images)] if single else cast(Sequence[OneImage], images):
        items += files_below(os.fspath(image))[0] if isinstance(image, (str, os.PathLike)) and os.path.isdir(image) else [image]
    return items


def _image(item: OneImage) -> Image.Image:
    if isinstance(item, (str, os.PathLike)):
        return load_image(item)
    if isinstance(item, Image.Image):
        return item
    array = np.asarray(item)
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise UserError(
            f"an image of {array.dtype} and shape {array.shape}: expected uint8 pixels (height, width, 3), a file or a PIL image"
        )
    return Image.fromarray(array)
