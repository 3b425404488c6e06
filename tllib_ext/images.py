"""The one reader of image files: a fixed list of formats, no decompression bombs, errors that name the file."""

import os
import threading
import warnings
from typing import Iterable, Optional, Tuple

import numpy as np
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from tllib_ext.compat import heif
from tllib_ext.errors import UserError
from tllib_ext.typing import PathLike

__all__ = ["as_rgb", "conversion_hint", "image_suffixes", "load_image"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
HEIF_SUFFIXES = (".heic", ".heif")
#: suffixes of photographs that are not read -> what to do
_CONVERSIONS = {
    HEIF_SUFFIXES: "HEIC is read after: pip install pillow-heif",
    (".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2"): "export raw photographs as JPEG by your photo program",
    (".avif", ".jxl", ".jp2", ".psd", ".svg"): "convert other pictures by: magick FILE FILE.jpg",
}

#: the formats that are read, whatever the suffix; one of Pillow's other readers starts Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")

#: pixels of an image: of a photograph (the largest cameras of phones have 200 million), and of a format in which a small
#: file may hold any number of equal pixels, Pillow's own limit
PHOTO_PIXELS, OTHER_PIXELS = 256_000_000, 89_478_485
_PHOTOS = ("JPEG", "MPO", "HEIF")
#: a JPEG above the lower limit is decoded at a fraction of its size, at least this side
_LARGE_SIDE = 4096


class _WarningFilters:
    """While any thread decodes: ignore Pillow's warnings of odd tags and palettes; the limit of pixels is ours."""

    def __init__(self) -> None:
        self._lock, self._users, self._catch = threading.Lock(), 0, warnings.catch_warnings()
        self._limit = Image.MAX_IMAGE_PIXELS

    def __enter__(self) -> None:
        with self._lock:  # the filters are global: the first thread sets them, the last one restores them
            if not self._users:
                self._catch = warnings.catch_warnings()
                self._catch.__enter__()
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                self._limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, PHOTO_PIXELS
            self._users += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._catch.__exit__(None, None, None)
                Image.MAX_IMAGE_PIXELS = self._limit


_FILTERS = _WarningFilters()


def image_suffixes() -> Tuple[str, ...]:
    """The suffixes of image files in a folder; HEIC photographs are among them where pillow-heif is installed."""
    return IMAGE_SUFFIXES + (HEIF_SUFFIXES if heif() else ())


def conversion_hint(suffixes: Iterable[str]) -> str:
    """What to do with photographs of these suffixes, which are not read; empty if none is a photograph's.

    Examples::

        >>> conversion_hint([".nef", ".txt"])
        'export raw photographs as JPEG by your photo program'
    """
    present = set(suffixes) - set(image_suffixes())
    return "; ".join(text for kinds, text in _CONVERSIONS.items() if present & set(kinds))


def load_image(path: PathLike, max_side: Optional[int] = None) -> Image.Image:
    """The image as RGB; an unreadable one is a :class:`~tllib_ext.errors.UserError` that names the file.

    Args:
        path (str or Path): the file
        max_side (int, optional): fit the image into a square of this side; a JPEG is then decoded at a fraction of its size

    The image is rotated by its EXIF tag, 16 bits are scaled to 8, the first frame is taken of several, transparency is
    dropped. A photograph (JPEG, HEIC) of more than 256 million pixels, and another image of more than 89 million, is refused
    before it is decoded; a JPEG of more than 89 million is decoded at a fraction of its size.
    """
    if not os.path.isfile(path):  # opening a pipe would block
        raise UserError(f"{'not an image but a folder or device' if os.path.exists(path) else 'image not found'}: {path}")
    try:
        with _FILTERS, Image.open(path, formats=(*FORMATS, "HEIF") if heif() else FORMATS) as image:
            limit = PHOTO_PIXELS if image.format in _PHOTOS else OTHER_PIXELS
            large = image.width * image.height > OTHER_PIXELS
            if image.width * image.height > limit:
                raise Image.DecompressionBombError
            if max_side is not None or (large and isinstance(image, JpegImageFile)):
                side = max_side or _LARGE_SIDE
                image.draft(None, (side, side))
            ImageOps.exif_transpose(image, in_place=True)
            image.load()
            rgb = as_rgb(_eight_bits(image))
            if max_side is not None:
                rgb.thumbnail((max_side, max_side))
            return rgb
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        limits = f"more than {PHOTO_PIXELS:,} pixels, or {OTHER_PIXELS:,} where it is no JPEG or HEIC"
        raise UserError(f"image too large to be decoded safely: {path} ({limits}); make it smaller") from None
    except Exception as error:  # Pillow raises nearly anything for a damaged file: OSError, struct.error, KeyError …
        raise UserError(f"unreadable image {path}: {error}") from None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits, where Pillow's own conversion would clip at 255."""
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def as_rgb(image: Image.Image) -> Image.Image:
    """A PIL image in RGB, without a copy if it is RGB already."""
    return image if image.mode == "RGB" else image.convert("RGB")
