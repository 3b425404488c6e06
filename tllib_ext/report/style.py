"""The style of every plot: figures without pyplot's global state, a colour-blind-safe palette, one type size, safe text."""

import io
import warnings
from pathlib import Path
from typing import Any, List, Tuple, Union

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tllib_ext.errors import visible
from tllib_ext.io import atomic_path

__all__ = ["BLUE", "GREEN", "GREY", "INK", "ORANGE", "PALETTE", "PURPLE", "SKY", "VERMILLION", "axes_grid", "figure", "finish",
           "plain", "png_bytes", "save"]  # fmt: skip

#: Okabe and Ito's palette.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, SKY, PURPLE, GREY = "#E69F00", "#56B4E9", "#CC79A7", "#6B7280"
PALETTE = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, GREY)
INK, _LINES = "#1F2937", "#D1D5DB"
#: points, for all text; pixels per inch of a PNG (a page shows it at 96).
FONT_SIZE, DPI = 9, 160


def axes_grid(rows: int, columns: int, width: float, height: float, **subplots: Any) -> Tuple[Figure, List[Axes]]:
    """A figure with its own Agg canvas and its axes, row by row; ``width`` and ``height`` in inches."""
    fig = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, columns, squeeze=False, **subplots).ravel().tolist()
    for ax in axes:
        ax.tick_params(labelcolor=INK, labelsize=FONT_SIZE, length=3, color=_LINES)
        ax.grid(True, color=_LINES, linewidth=0.6, alpha=0.7)
        ax.set_axisbelow(True)
        for side, spine in ax.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_LINES)
    return fig, axes


def figure(width: float = 4.6, height: float = 3.1) -> Tuple[Figure, Axes]:
    """A figure with one pair of axes, small enough that a phone shows it without shrinking the text much."""
    fig, axes = axes_grid(1, 1, width, height)
    return fig, axes[0]


def finish(ax: Axes, title: str, xlabel: str = "", ylabel: str = "", legend: bool = False, **where: Any) -> None:
    """Set the title, the names of the axes, and with ``legend`` a legend of what has a label."""
    ax.set_title(title, loc="left", fontsize=FONT_SIZE, color=INK, fontweight="bold")
    ax.set_xlabel(xlabel, fontsize=FONT_SIZE, color=INK)
    ax.set_ylabel(ylabel, fontsize=FONT_SIZE, color=INK)
    if legend and ax.get_legend_handles_labels()[0]:
        ax.legend(**{"fontsize": FONT_SIZE, "facecolor": "white", "edgecolor": "none", "framealpha": 0.9, **where})


def plain(text: object, limit: int = 0) -> str:
    """Text for matplotlib: no formula between dollar signs, visible control characters, cut to ``limit`` characters.

    Examples::

        >>> plain("$x$"), plain("mug\\n"), plain("a very long class name", 10)
        ('\\\\$x\\\\$', 'mug\\\\n', 'a very lo…')
    """
    clean = visible(text)
    return (clean if not limit or len(clean) <= limit else clean[: limit - 1] + "…").replace("$", r"\$")


def png_bytes(fig: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        fig.savefig(buffer, format="png")
    return buffer.getvalue()


def save(fig: Figure, file: Union[str, Path]) -> None:
    """Write the figure as PNG, atomically."""
    with atomic_path(file) as draft:
        draft.write_bytes(png_bytes(fig))
