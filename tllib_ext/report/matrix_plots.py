"""Matrices as heat maps: the confusion of the predictions, the transition of the labels."""

from typing import List, Optional, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from tllib_ext.report.style import FONT_SIZE, INK, axes_grid, finish, plain
from tllib_ext.typing import Record

__all__ = ["confusion_matrix", "transition_matrices"]

#: inches per cell while the names fit; names per axis; letters per name.
_CELL, _NAMES, _LETTERS = 0.23, 60, 24


def confusion_matrix(matrix: np.ndarray, names: Sequence[str]) -> Figure:
    """Shares of each true class's images by predicted class; only classes that occur have a row or a column.

    Args:
        matrix (numpy.ndarray): counts, rows true, columns predicted, both in the order of ``names``
        names (sequence of str): the labels, ``unknown`` last
    """
    rows, columns = np.flatnonzero(matrix.sum(1)), np.flatnonzero(matrix.sum(0) + matrix.sum(1))
    shares = matrix[np.ix_(rows, columns)] / matrix[rows].sum(1, keepdims=True)
    room = _room(names)
    fig, axes = axes_grid(1, 1, max(_inches(len(columns)) + room, 4.6), _inches(len(rows)) + room)
    _heat(axes[0], shares, [names[int(k)] for k in rows], [names[int(k)] for k in columns])
    finish(axes[0], "Images of each true class by prediction, %", "predicted", "true class")
    return fig


def transition_matrices(estimated: ArrayLike, names: Sequence[str], true: Optional[ArrayLike] = None) -> Figure:
    r"""Label-transition matrices: the share of each given label (columns) among the images of a true class (rows).

    Args:
        estimated: :math:`(K, K)`, by the label model
        names (sequence of str): the K classes
        true (optional): :math:`(K, K)`, where the noise was simulated; drawn beside it
    """
    matrices = [("Given labels by true class, %: estimated", estimated)]
    if true is not None:
        matrices.append(("simulated", true))
    cells, room = _inches(len(names)), _room(names)
    fig, axes = axes_grid(1, len(matrices), max(cells * len(matrices) + room, 4.6), cells + room, sharey=True)
    for ax, (title, matrix) in zip(axes, matrices):
        _heat(ax, np.asarray(matrix, dtype=float), list(names), list(names))
        finish(ax, title, "given label", "true class" if ax is axes[0] else "")
    return fig


def _inches(cells: int) -> float:
    return _CELL * min(max(cells, 4), _NAMES)


def _room(names: Sequence[str]) -> float:
    """Inches for the title and the names beside a matrix."""
    return 0.9 + 0.1 * max(len(plain(name, _LETTERS)) for name in names)


def _heat(ax: Axes, shares: np.ndarray, rows: List[str], columns: List[str]) -> None:
    ax.grid(False)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ticks: Record = {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": FONT_SIZE}
    thin = -(-max(shares.shape) // _NAMES)  # more names than fit: every second, every third
    ax.set_xticks(range(0, len(columns), thin), [plain(name, _LETTERS) for name in columns[::thin]], **ticks)
    ax.set_yticks(range(0, len(rows), thin), [plain(name, _LETTERS) for name in rows[::thin]], fontsize=FONT_SIZE)
    if max(shares.shape) <= _NAMES:
        for i, j in zip(*np.nonzero(shares >= 0.005)):
            ink = "white" if shares[i, j] > 0.55 else INK
            ax.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize=7, color=ink)
