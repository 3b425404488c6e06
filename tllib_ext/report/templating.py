"""HTML from jinja2 templates: every value is escaped, and the pages forbid scripts and foreign addresses to the browser."""

import base64
import hashlib
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tllib_ext.errors import visible
from tllib_ext.report.style import DPI

__all__ = ["Picture", "data_address", "png_picture", "render"]


def render(template: str, **values: Any) -> str:
    """The text of ``templates/TEMPLATE``; class and file names among the values are shown, never interpreted.

    Examples::

        >>> print(_environment().from_string("{{ name }}").render(name="<b>&\\x1b"))
        &lt;b&gt;&amp;\\x1b
    """
    return _environment().get_template(template).render(values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    del made.filters["safe"]  # text is escaped by its type: only code of this package makes Markup
    made.filters["percent"] = lambda value: "not defined" if value is None else f"{100 * value:.1f} %"
    made.filters["csp_hash"] = _csp_hash
    return made


def _visible(value: object) -> Markup:
    """Every value escaped, control characters and bytes that are no text made visible; what a template made itself stays."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    return escape(text if text.isprintable() else visible(text))


def _csp_hash(text: str) -> Markup:
    """The source expression that allows exactly this inline style sheet."""
    digest = base64.b64encode(hashlib.sha256(str(text).encode("utf-8")).digest()).decode("ascii")
    return Markup(f"'sha256-{digest}'")


def data_address(data: bytes, kind: str) -> Markup:
    """A file as an address that holds it, so that a page needs no other file."""
    return Markup(f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}")


class Picture(NamedTuple):
    """A PNG as ``data:`` address, and the size at which its text has the size of every other plot's."""

    address: Markup
    width: int
    height: int


def png_picture(data: bytes) -> Picture:
    """A plot for a page."""
    width, height = (round(side * 96 / DPI) for side in struct.unpack(">II", data[16:24]))
    return Picture(data_address(data, "image/png"), width, height)
