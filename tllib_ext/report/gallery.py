"""Small pictures with captions, as HTML that needs no other file."""

import base64
import html
import io
import os
import warnings
from typing import Any, Iterable, List, Optional, Tuple

from tllib_ext.report.style import safe_text

__all__ = ["Thumbnails", "escape", "gallery", "short_name"]

_SIDE = 120
#: bytes of all thumbnails of a page together; the pictures after that are names only.
_BUDGET = 2_500_000


def escape(text: Any, limit: int = 0) -> str:
    """Any text as HTML: markup is shown, not obeyed; control characters and bytes that are no text become visible.

    Examples::

        >>> escape('<script>"a" & b')
        '&lt;script&gt;&quot;a&quot; &amp; b'
    """
    return html.escape(safe_text(text, limit), quote=True)


def short_name(path: str) -> str:
    """The last two parts of a path: class folder and file.

    Examples::

        >>> short_name("data/office31/amazon/images/mug/7.jpg")
        'mug/7.jpg'
    """
    return "/".join(str(path).replace("\\", "/").split("/")[-2:])


class Thumbnails:
    """Images as small JPEGs in ``data:`` addresses; what cannot be read is None, never an error.

    Args:
        enabled (bool): False gives no picture at all, where paths are names only
    """

    def __init__(self, enabled: bool = True):
        self.enabled, self.left = enabled, _BUDGET

    def __call__(self, path: str) -> Optional[str]:
        data = _jpeg(path) if self.enabled and self.left > 0 else None
        if data is None:
            return None
        self.left -= len(data)
        return "data:image/jpeg;base64," + base64.b64encode(data).decode("ascii")


def _jpeg(path: str) -> Optional[bytes]:
    from PIL import Image, ImageOps

    try:
        if not os.path.isfile(path):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images and odd metadata
            with Image.open(path) as image:
                image.draft("RGB", (2 * _SIDE, 2 * _SIDE))  # a JPEG is decoded at a fraction of its size
                image.thumbnail((2 * _SIDE, 2 * _SIDE))
                image = ImageOps.exif_transpose(image).convert("RGB")
        image.thumbnail((_SIDE, _SIDE))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=78)
        return stream.getvalue()
    except Exception:  # a damaged file fails in as many ways as there are formats
        return None


def gallery(items: Iterable[Tuple[str, List[str], str]], thumbnails: Thumbnails) -> str:
    """A grid of pictures.

    Args:
        items: path, caption lines (HTML already) and a CSS class for each picture
        thumbnails (Thumbnails): gives the pictures
    """
    cells = []
    for path, lines, kind in items:
        name, data = escape(short_name(path), 60), thumbnails(path)
        picture = ""
        if thumbnails.enabled:
            picture = f'<img src="{data}" alt="{name}">' if data else '<span class="blank">no picture</span>'
        text = "".join(f"<span>{line}</span>" for line in lines)
        cells.append(f'<li class="{kind}" title="{escape(path)}">{picture}<p><bdi>{name}</bdi>{text}</p></li>')
    return f'<ul class="gallery{"" if thumbnails.enabled else " names"}">{"".join(cells)}</ul>'
