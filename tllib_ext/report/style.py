"""How every plot looks: figures without pyplot's global state, colours that the colour-blind can tell apart, safe text."""

import warnings
from pathlib import Path
from typing import Any, Tuple, Union

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tllib_ext.errors import printable
from tllib_ext.io import atomic_path

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "PURPLE", "SKY", "VERMILLION", "figure", "finish", "plain", "safe_text", "save"]

#: Okabe and Ito's palette.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, SKY, PURPLE, GREY = "#E69F00", "#56B4E9", "#CC79A7", "#6B7280"
_INK, _LINES = "#1F2937", "#D1D5DB"


def figure(width: float = 5.6, height: float = 3.5) -> Tuple[Figure, Any]:
    """A figure with its own Agg canvas, and its axes; small, with large letters, so that a phone shows it readably."""
    fig = Figure(figsize=(width, height), dpi=140, layout="constrained", facecolor="white")
    FigureCanvasAgg(fig)
    ax = fig.subplots()
    ax.tick_params(labelcolor=_INK, labelsize=9, length=3, color=_LINES)
    ax.grid(True, color=_LINES, linewidth=0.6, alpha=0.7)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_LINES)
    return fig, ax


def finish(ax: Any, title: str, xlabel: str = "", ylabel: str = "", legend: bool = False, **where: Any) -> None:
    """Title on the left, axis names, and a legend if asked for."""
    ax.set_title(title, loc="left", fontsize=10.5, color=_INK, fontweight="bold")
    ax.set_xlabel(xlabel, fontsize=9, color=_INK)
    ax.set_ylabel(ylabel, fontsize=9, color=_INK)
    if legend and ax.get_legend_handles_labels()[0]:
        ax.legend(**{"fontsize": 8.5, "facecolor": "white", "edgecolor": "none", "framealpha": 0.9, **where})


def safe_text(text: Any, limit: int = 0) -> str:
    """Names are data: control characters and stray bytes become visible, long names are cut.

    Examples::

        >>> safe_text("mug\\n"), safe_text("a very long class name", 10)
        ('mug\\\\n', 'a very lo…')
    """
    clean = printable(text).replace("\n", "\\n")
    return clean if not limit or len(clean) <= limit else clean[: limit - 1] + "…"


def plain(text: Any, limit: int = 0) -> str:
    """:func:`safe_text` for matplotlib, which takes what stands between two dollar signs for a formula.

    Examples::

        >>> plain("$x$")
        '\\\\$x\\\\$'
    """
    return safe_text(text, limit).replace("$", r"\$")


def save(fig: Figure, file: Union[str, Path]) -> None:
    """Write a PNG whole."""
    with warnings.catch_warnings(), atomic_path(file) as draft:
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        fig.savefig(draft, format="png")
