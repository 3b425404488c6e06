"""The one reader of image files: a fixed list of formats, no decompression bombs, errors that name the file."""

import os
import threading
import warnings
from typing import Any, Union

import numpy as np

from tllib_ext.errors import UserError

__all__ = ["IMAGE_SUFFIXES", "as_rgb", "load_image"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")

#: what is looked for inside a file, whatever its suffix; Pillow's other readers are rarely used, and one starts Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


class _Quiet:
    """Pillow's warnings of odd tags and palettes unsaid, that of a decompression bomb raised, while any thread decodes."""

    def __init__(self) -> None:
        self._lock, self._users, self._catch = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        from PIL import Image

        with self._lock:  # the filters belong to the whole process: the first sets them, the last puts them back
            if not self._users:
                self._catch = warnings.catch_warnings()
                self._catch.__enter__()
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", Image.DecompressionBombWarning)
            self._users += 1

    def __exit__(self, *exc: Any) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._catch.__exit__(None, None, None)


_QUIET = _Quiet()


def load_image(path: Union[str, os.PathLike]) -> Any:
    """The image as RGB; an unreadable one is a :class:`~tllib_ext.errors.UserError` that names the file.

    Turned as its EXIF tag says, 16 bits scaled to 8, the first frame of several, transparency left out. An image of more
    pixels than Pillow takes for honest (89 million) is refused before it is decoded.
    """
    from PIL import Image, ImageOps

    if not os.path.isfile(path):  # a pipe of that name would be waited for
        raise UserError(f"{'not an image but a folder or device' if os.path.exists(path) else 'image not found'}: {path}")
    try:
        with _QUIET, Image.open(path, formats=FORMATS) as image:
            ImageOps.exif_transpose(image, in_place=True)
            image.load()
            return as_rgb(_eight_bits(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        limit = f"more than {Image.MAX_IMAGE_PIXELS:,} pixels"
        raise UserError(f"image too large to be decoded safely: {path} ({limit}); make it smaller") from None
    except Exception as error:  # Pillow lets a damaged file surface as nearly anything: OSError, struct.error, KeyError …
        raise UserError(f"unreadable image {path}: {error}") from None


def _eight_bits(image: Any) -> Any:
    """Grey of 16 bits scaled to 8, where Pillow's own conversion would cut everything off at 255."""
    if not image.mode.startswith("I"):
        return image
    from PIL import Image

    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def as_rgb(image: Any) -> Any:
    """A PIL image in RGB; the same one if it is, of which ``convert`` would make a copy."""
    return image if image.mode == "RGB" else image.convert("RGB")
