"""The plots of a run. The functions take arrays and return figures; :func:`plot_run` draws those of a run folder."""

from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from tllib_ext.evaluation.curves import ThresholdCurve
from tllib_ext.evaluation.curves import threshold_curve as compute_threshold_curve
from tllib_ext.evaluation.feature_map_file import GROUPS, FeatureMap
from tllib_ext.report.run_files import RunFiles
from tllib_ext.report.style import BLUE, GREEN, GREY, INK, ORANGE, PALETTE, PURPLE, VERMILLION, axes_grid, figure, finish, plain
from tllib_ext.typing import Record

__all__ = ["Scores", "confusion_matrix", "density", "feature_map", "metrics_over_training", "plot_run", "suspicion_histogram",
           "threshold_curve", "training_terms", "transition_matrices"]  # fmt: skip

_METRICS = (("os", "OS", BLUE), ("os_star", "OS*", GREEN), ("unk", "UNK", VERMILLION), ("h_score", "H-score", PURPLE),
            ("auroc", "AUROC", GREY), ("predicted_unknown", "called unknown", ORANGE))  # fmt: skip
#: a legend under the axes.
_BELOW: Record = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 3, "columnspacing": 0.9,
                          "handlelength": 1.4}  # fmt: skip
#: inches per cell while the names fit; names per axis; letters per name.
_CELL, _NAMES, _LETTERS = 0.23, 60, 24


def plot_run(run: RunFiles) -> Dict[str, Figure]:
    """Every plot that the files of the run have the numbers for, by name."""
    p, split, report = run.predictions, run.split, run.report
    unknown = p.label == split.unknown if report is not None else None
    figures: Dict[str, Figure] = {}
    if (p.score != p.score[0]).any():  # a single value has no distribution
        figures["density"] = density([Scores("Scores of the target images", p.score, unknown, run.threshold)], "score")
    if report is not None:
        curve = compute_threshold_curve(p.label, p.top[:, 0], p.score, split)
        figures["threshold"] = threshold_curve(curve, run.threshold)
        figures["confusion"] = confusion_matrix(report.confusion, split.label_names)
    if len(run.records) > 1:
        figures["metrics"] = metrics_over_training(run.records)
        figures["training"] = training_terms(run.records)
    if run.feature_map is not None:
        figures["tsne"] = feature_map(run.feature_map)
    if run.suspects is not None:
        figures["suspects"] = suspicion_histogram(run.suspects.suspicion, run.suspects.is_wrong)
    true = run.results.get("realised_transition") if run.true_rate is not None else None
    if run.label_model is not None or true is not None:
        estimated = None if run.label_model is None else run.label_model["transition"]
        figures["transition"] = transition_matrices(estimated, split.source_classes, true)
    return figures


class Scores(NamedTuple):
    """A panel of :func:`density`: the scores, whether each image is private (None without labels), the threshold."""

    title: str
    score: np.ndarray
    unknown: Optional[np.ndarray] = None
    threshold: Optional[float] = None


def density(panels: Sequence[Scores], axis: str) -> Figure:
    """Density of the score of common and private target images with the threshold, as in the paper's Fig. 3.

    Args:
        panels (sequence of Scores): drawn side by side
        axis (str): label of the horizontal axis
    """
    fig, axes = axes_grid(1, len(panels), 4.6 * len(panels), 3.1)
    for ax, (title, score, unknown, threshold) in zip(axes, panels):
        finite = np.isfinite(score)
        values = score[finite]
        if threshold is not None and not np.isfinite(threshold):
            threshold = None
        if len(values):
            ends = [values.min(), values.max(), *([] if threshold is None else [threshold])]
            room = 0.08 * (max(ends) - min(ends)) or 1.0
            grid = np.linspace(min(ends) - room, max(ends) + room, 400)
            if unknown is None:
                _smooth(ax, values, BLUE, "target images", grid)
            else:
                _smooth(ax, values[~unknown[finite]], BLUE, "common classes", grid)
                _smooth(ax, values[unknown[finite]], VERMILLION, "private classes", grid)
            ax.set_xlim(grid[0], grid[-1])
        _mark_threshold(ax, threshold)
        ax.set_ylim(bottom=0)
        left_out = "" if finite.all() else f" ({np.count_nonzero(~finite)} infinite left out)"
        finish(ax, plain(title), plain(axis) + left_out, "density", True)
    return fig


def _smooth(ax: Axes, values: np.ndarray, colour: str, label: str, grid: np.ndarray) -> None:
    """Gaussian kernel density with Scott's rule over a rug plot; the rug alone where all values are equal."""
    from scipy.stats import gaussian_kde

    if not len(values):
        return
    ax.plot(values, np.zeros(len(values)), "|", color=colour, alpha=0.4, markersize=9, clip_on=False)
    height = np.full(len(grid), np.nan)
    if len(values) > 1 and np.ptp(values) > 1e-9 * max(1.0, abs(values).max()):
        height = gaussian_kde(values, bw_method="scott")(grid)
    ax.plot(grid, height, color=colour, linewidth=2, label=f"{label} ({len(values)})")
    ax.fill_between(grid, height, color=colour, alpha=0.18, linewidth=0)


def _mark_threshold(ax: Axes, threshold: Optional[float]) -> None:
    if threshold is not None:
        ax.axvline(threshold, color="black", linestyle="--", linewidth=1.3, label=f"threshold {threshold:.3g}")


def threshold_curve(curve: ThresholdCurve, threshold: Optional[float] = None) -> Figure:
    """OS, OS*, UNK and H-score over all thresholds, and the threshold of the method."""
    fig, ax = figure()
    lines = ((curve.os, "OS", BLUE, 2.4), (curve.h_score, "H-score", PURPLE, 2.4), (curve.os_star, "OS*", GREEN, 1.3),
             (curve.unk, "UNK", VERMILLION, 1.3))  # fmt: skip
    finite = np.isfinite(curve.threshold)
    for values, label, colour, width in lines:
        if values is not None:
            ax.step(curve.threshold[finite], values[finite], where="post", color=colour, linewidth=width, label=label)
    _mark_threshold(ax, threshold)
    ax.set_ylim(0, 1.02)
    finish(ax, "Metrics at other thresholds", "threshold on the score", "", True, **_BELOW)
    return fig


def training_terms(records: Sequence[Record]) -> Figure:
    """What training measured: means of the steps since the previous evaluation."""
    names = sorted({name for record in records for name in record if name.startswith("train_")})
    fig, ax = figure(height=2.5 + 0.2 * -(-len(names) // 3))
    for number, name in enumerate(names):
        style = ("-", "--", ":")[number // len(PALETTE) % 3]
        _line(ax, records, name, name.removeprefix("train_"), PALETTE[number % len(PALETTE)], style)
    finish(ax, "Losses and selections of the method", "step", "", True, **_BELOW)
    return fig


def metrics_over_training(records: Sequence[Record]) -> Figure:
    """The metrics of every evaluation of the target."""
    fig, ax = figure()
    for name, label, colour in _METRICS:
        _line(ax, records, name, label, colour)
    ax.set_ylim(0, 1.02)
    finish(ax, "Target metrics at every evaluation", "step", "", True, **_BELOW)
    return fig


def _line(ax: Axes, records: Sequence[Record], name: str, label: str, colour: str, style: str = "-") -> None:
    points = [(r["step"], r[name]) for r in records if isinstance(r.get(name), (int, float)) and np.isfinite(r[name])]
    if points:
        ax.plot(*zip(*points), color=colour, linestyle=style, label=plain(label, 32), linewidth=1.8, marker="o", markersize=3.5)


def feature_map(points: FeatureMap) -> Figure:
    """t-SNE of source, target-common and target-private samples."""
    fig, ax = figure(4.6, 4.2)
    looks = {"source": (GREY, "o", 9, 0.45), "target shared": (BLUE, "^", 15, 0.8), "target unknown": (VERMILLION, "x", 15, 0.8),
             "target": (BLUE, "^", 15, 0.8)}  # fmt: skip
    names = {"target shared": "target, common", "target unknown": "target, private"}
    for number, group in enumerate(GROUPS):
        rows = points.group == number
        if rows.any():
            colour, marker, size, alpha = looks[group]
            look: Record = {"s": size, "c": colour, "marker": marker, "alpha": alpha, "linewidths": 0.9 if marker == "x" else 0}
            ax.scatter(points.x[rows], points.y[rows], label=f"{names.get(group, group)} ({rows.sum()})", **look)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    below = {**_BELOW, "bbox_to_anchor": (0.5, 0.0), "ncols": 2, "handletextpad": 0.2}
    finish(ax, "Features, t-SNE", "", "", True, **below)
    return fig


def suspicion_histogram(suspicion: np.ndarray, wrong: Optional[np.ndarray] = None) -> Figure:
    """Histogram of the suspicion of the source labels; correct and wrong labels apart where the truth is known."""
    fig, ax = figure()
    bins = np.linspace(-1, 1, 41).tolist()
    parts = [(np.ones(len(suspicion), bool), BLUE, "source labels")]
    if wrong is not None:
        parts = [(~wrong, BLUE, "label correct"), (wrong, VERMILLION, "label wrong")]
    for rows, colour, label in parts:
        ax.hist(suspicion[rows], bins, color=colour, alpha=0.55, label=f"{label} ({len(suspicion[rows])})")
    ax.set_yscale("log")  # few labels are wrong
    ax.set_ylim(bottom=0.7)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.axvline(0, color="black", linewidth=1, linestyle="--")
    finish(ax, "Suspicion of the source labels", "suspicion: above 0 another class fits better", "labels", True)
    return fig


def confusion_matrix(matrix: np.ndarray, names: Sequence[str]) -> Figure:
    """Shares of each true class's images by predicted class; only classes that occur have a row or a column.

    Args:
        matrix (numpy.ndarray): counts, rows true, columns predicted, both in the order of ``names``
        names (sequence of str): the labels, ``unknown`` last
    """
    rows, columns = np.flatnonzero(matrix.sum(1)), np.flatnonzero(matrix.sum(0) + matrix.sum(1))
    shares = matrix[np.ix_(rows, columns)] / matrix[rows].sum(1, keepdims=True)
    fig, axes = axes_grid(1, 1, max(_inches(len(columns), names), 4.6), _inches(len(rows), names))
    _heat(axes[0], shares, [names[int(k)] for k in rows], [names[int(k)] for k in columns])
    finish(axes[0], "Images of each true class by prediction, %", "predicted", "true class")
    return fig


def transition_matrices(estimated: Optional[ArrayLike], names: Sequence[str], true: Optional[ArrayLike] = None) -> Figure:
    r"""Label-transition matrices: the share of each given label (columns) among the images of a true class (rows).

    Args:
        estimated (optional): :math:`(K, K)`, by the label model
        names (sequence of str): the K classes
        true (optional): :math:`(K, K)`, where the true labels are known; drawn beside it
    """
    found = [("estimated", estimated), ("simulated or known", true)]
    matrices = [(title, matrix) for title, matrix in found if matrix is not None]
    matrices[0] = f"Given labels by true class, %: {matrices[0][0]}", matrices[0][1]
    k, n = len(names), len(matrices)
    fig, axes = axes_grid(1, n, max(_inches(k, names, n), 4.6), _inches(k, names), sharey=True)
    for ax, (title, matrix) in zip(axes, matrices):
        _heat(ax, np.asarray(matrix, dtype=float), list(names), list(names))
        finish(ax, title, "given label", "true class" if ax is axes[0] else "")
    return fig


def _inches(cells: int, names: Sequence[str], matrices: int = 1) -> float:
    """Inches of the matrices' cells, their title and the names beside them."""
    return _CELL * min(max(cells, 4), _NAMES) * matrices + 0.9 + 0.1 * max(len(plain(name, _LETTERS)) for name in names)


def _heat(ax: Axes, shares: np.ndarray, rows: List[str], columns: List[str]) -> None:
    ax.grid(False)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ticks: Record = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    thin = -(-max(shares.shape) // _NAMES)  # more names than fit: every second, every third
    ax.set_xticks(range(0, len(columns), thin), [plain(name, _LETTERS) for name in columns[::thin]], **ticks)
    ax.set_yticks(range(0, len(rows), thin), [plain(name, _LETTERS) for name in rows[::thin]])
    if max(shares.shape) <= _NAMES:
        for i, j in zip(*np.nonzero(shares >= 0.005)):
            ink = "white" if shares[i, j] > 0.55 else INK
            ax.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize=7, color=ink)
