"""The plots of a run. Every function takes arrays and gives a figure; nothing here reads files or keeps state."""

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from matplotlib.figure import Figure

from tllib_ext.evaluation.curves import ThresholdCurve
from tllib_ext.evaluation.feature_map_file import GROUPS, FeatureMap
from tllib_ext.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, figure, finish, plain

__all__ = [
    "confusion_matrix",
    "density",
    "feature_map",
    "label_model_rounds",
    "metrics_over_training",
    "suspicion_histogram",
    "suspicion_roc",
    "threshold_curve",
    "training_terms",
    "transition_matrix",
]

_METRICS = (("os", "OS", BLUE), ("os_star", "OS*", GREEN), ("unk", "UNK", VERMILLION), ("h_score", "H-score", PURPLE),
            ("auroc", "AUROC", GREY), ("predicted_unknown", "called unknown", ORANGE))  # fmt: skip


def density(score: np.ndarray, unknown: Optional[np.ndarray] = None, threshold: Optional[float] = None) -> Figure:
    r"""Density of the score of common and private target samples, with the threshold (the paper's Fig. 3).

    Args:
        score (numpy.ndarray): :math:`(N, )`, high = unknown
        unknown (numpy.ndarray, optional): :math:`(N, )` bool, truly private; None for an unlabelled target
        threshold (float, optional): where the method cuts
    """
    fig, ax = figure()
    finite = np.isfinite(score)
    values = score[finite]
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
    _cut(ax, threshold)
    ax.set_ylim(bottom=0)
    left_out = "" if finite.all() else f" ({np.count_nonzero(~finite)} infinite left out)"
    finish(ax, "How unknown the target images look", f"score{left_out}", "density", True)
    return fig


def _smooth(ax: Any, values: np.ndarray, colour: str, label: str, grid: np.ndarray) -> None:
    """Gaussian KDE with Scott's rule over ticks; ticks alone where there is nothing to smooth."""
    from scipy.stats import gaussian_kde

    if not len(values):
        return
    ax.plot(values, np.zeros(len(values)), "|", color=colour, alpha=0.4, markersize=9, clip_on=False)
    height = np.full(len(grid), np.nan)
    if len(values) > 1 and np.ptp(values) > 1e-9 * max(1.0, abs(values).max()):
        height = gaussian_kde(values, bw_method="scott")(grid)
    ax.plot(grid, height, color=colour, linewidth=2, label=f"{label} ({len(values)})")
    ax.fill_between(grid, height, color=colour, alpha=0.18, linewidth=0)


def _cut(ax: Any, threshold: Optional[float]) -> None:
    if threshold is not None:
        ax.axvline(threshold, color="black", linestyle="--", linewidth=1.3, label=f"threshold {threshold:.3g}")


def threshold_curve(curve: ThresholdCurve, threshold: Optional[float] = None) -> Figure:
    """OS, OS*, UNK and H-score if the score were cut elsewhere, and where the method cuts."""
    fig, ax = figure()
    lines = ((curve.os, "OS", BLUE, 2.4), (curve.h_score, "H-score", PURPLE, 2.4), (curve.os_star, "OS*", GREEN, 1.3),
             (curve.unk, "UNK", VERMILLION, 1.3))  # fmt: skip
    finite = np.isfinite(curve.threshold)
    for values, label, colour, width in lines:
        if values is not None:
            ax.step(curve.threshold[finite], values[finite], where="post", color=colour, linewidth=width, label=label)
    _cut(ax, threshold)
    ax.set_ylim(0, 1.02)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 5, "columnspacing": 0.9, "handlelength": 1.4}
    finish(ax, "Had the threshold been another", "threshold on the score", "", True, **below)
    return fig


def training_terms(records: Sequence[Dict[str, Any]]) -> Figure:
    """What training measured: means of the steps since the evaluation before."""
    fig, ax = figure()
    names = sorted({name for record in records for name in record if name.startswith("train_")})
    colours = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, GREY)
    for number, name in enumerate(names):
        style = ("-", "--", ":")[number // len(colours) % 3]
        _line(ax, records, name, name.removeprefix("train_"), colours[number % len(colours)], style)
    finish(ax, "Training: means since the evaluation before", "step", "", True, ncols=2)
    return fig


def metrics_over_training(records: Sequence[Dict[str, Any]]) -> Figure:
    """What each evaluation of the target gave."""
    fig, ax = figure()
    for name, label, colour in _METRICS:
        _line(ax, records, name, label, colour)
    ax.set_ylim(0, 1.02)
    finish(ax, "Target, at every evaluation", "step", "", True, ncols=2, loc="lower right")
    return fig


def _line(ax: Any, records: Sequence[Dict[str, Any]], name: str, label: str, colour: str, style: str = "-") -> None:
    points = [(r["step"], r[name]) for r in records if isinstance(r.get(name), (int, float)) and np.isfinite(r[name])]
    if points:
        ax.plot(*zip(*points), color=colour, linestyle=style, label=plain(label, 24), linewidth=1.8, marker="o", markersize=3.5)


def confusion_matrix(matrix: np.ndarray, names: Sequence[str]) -> Figure:
    """Shares of each true class's images by predicted class; only classes that occur have a row or a column.

    Args:
        matrix (numpy.ndarray): counts, rows true, columns predicted, both in the order of ``names``
        names (sequence of str): the labels, ``unknown`` last
    """
    rows, columns = np.flatnonzero(matrix.sum(1)), np.flatnonzero(matrix.sum(0) + matrix.sum(1))
    shares = matrix[np.ix_(rows, columns)] / matrix[rows].sum(1, keepdims=True)
    fig, ax = figure(float(np.clip(0.36 * len(columns) + 1.8, 4, 12)), float(np.clip(0.3 * len(rows) + 1.6, 2.5, 11)))
    _heat(ax, shares, [names[k] for k in rows], [names[k] for k in columns])
    finish(ax, "Shares of each true class (rows) by what it was called, %")
    return fig


def transition_matrix(matrix: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """A label-transition matrix: share of each given label (columns) among the images of a true class (rows)."""
    side = float(np.clip(0.24 * len(names) + 1.6, 3.5, 12))
    fig, ax = figure(side + 0.4, side)
    _heat(ax, matrix, list(names), list(names))
    finish(ax, title, "given label", "true class")
    return fig


def _heat(ax: Any, shares: np.ndarray, rows: List[str], columns: List[str]) -> None:
    ax.grid(False)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    size = float(np.clip(170 / max(shares.shape), 4, 8))
    ticks = {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": size}
    thin = -(-max(shares.shape) // 60)  # more names than fit: every second, every third
    ax.set_xticks(range(0, len(columns), thin), [plain(name, 18) for name in columns[::thin]], **ticks)
    ax.set_yticks(range(0, len(rows), thin), [plain(name, 18) for name in rows[::thin]], fontsize=size)
    if max(shares.shape) <= 32:
        for i, j in zip(*np.nonzero(shares >= 0.005)):
            ink = "white" if shares[i, j] > 0.55 else "#1F2937"
            ax.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize=size - 1, color=ink)


def feature_map(points: FeatureMap) -> Figure:
    """t-SNE of source, target-common and target-private samples."""
    fig, ax = figure(5.6, 4.6)
    looks = {"source": (GREY, "o", 9, 0.45), "target shared": (BLUE, "^", 15, 0.8), "target unknown": (VERMILLION, "x", 15, 0.8),
             "target": (BLUE, "^", 15, 0.8)}  # fmt: skip
    names = {"target shared": "target, common", "target unknown": "target, private"}
    for number, group in enumerate(GROUPS):
        rows = points.group == number
        if rows.any():
            colour, marker, size, alpha = looks[group]
            look = {"s": size, "c": colour, "marker": marker, "alpha": alpha, "linewidths": 0.9 if marker == "x" else 0}
            ax.scatter(points.x[rows], points.y[rows], label=f"{names.get(group, group)} ({rows.sum()})", **look)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 3, "handletextpad": 0.2, "columnspacing": 1.0}
    finish(ax, "Features of the trained network, t-SNE", "", "", True, **place)
    return fig


def suspicion_histogram(suspicion: np.ndarray, wrong: Optional[np.ndarray] = None) -> Figure:
    """How suspicious the source labels are; right and wrong ones apart where the truth is known."""
    fig, ax = figure()
    bins = np.linspace(-1, 1, 41)
    parts = [(slice(None), BLUE, "source labels")]
    if wrong is not None:
        parts = [(~wrong, BLUE, "label right"), (wrong, VERMILLION, "label wrong")]
    for rows, colour, label in parts:
        ax.hist(suspicion[rows], bins, color=colour, alpha=0.55, label=f"{label} ({len(suspicion[rows])})")
    ax.set_yscale("symlog", linthresh=10)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.axvline(0, color="black", linewidth=1, linestyle="--")
    finish(ax, "How suspicious the source labels are", "suspicion: above 0 another class fits better", "labels", True)
    return fig


def suspicion_roc(suspicion: np.ndarray, wrong: np.ndarray) -> Figure:
    """Finding the wrong labels by suspicion: the ROC curve, and the point where as many are suspected as are wrong."""
    from sklearn.metrics import roc_auc_score, roc_curve

    fig, ax = figure()
    fpr, tpr, _ = roc_curve(wrong, suspicion)
    first = wrong[np.argsort(-suspicion, kind="stable")[: wrong.sum()]]
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    ax.plot(fpr, tpr, color=VERMILLION, linewidth=2.2, label=f"AUROC {roc_auc_score(wrong, suspicion):.3f}")
    point = [(~first).sum() / (~wrong).sum(), first.mean()]
    ax.plot(*point, "o", color="black", label=f"the {wrong.sum()} most suspicious: {first.mean():.1%} wrong")
    finish(ax, "Finding the wrong labels", "right labels suspected", "wrong labels found", True, loc="lower right")
    return fig


def label_model_rounds(
    trace: Sequence[Dict[str, float]], rate: float, rate_std: float, true_rate: Optional[float] = None
) -> Figure:
    """The estimated share of wrong labels, round by round, and what it settled on."""
    fig, ax = figure()
    rounds = [entry["rate"] for entry in trace]
    ax.plot(range(len(rounds)), rounds, color=BLUE, marker="o", markersize=3.5, label="rounds of the estimate")
    ax.axhspan(rate - rate_std, rate + rate_std, color=BLUE, alpha=0.15, linewidth=0)
    ax.axhline(rate, color=BLUE, linewidth=1.2, label=f"estimate {rate:.3f} ± {rate_std:.3f}")
    if true_rate is not None:
        ax.axhline(true_rate, color="black", linestyle="--", linewidth=1.3, label=f"truth {true_rate:.3f}")
    ax.set_ylim(0, max(0.5, 1.15 * max([rate + rate_std, *rounds])))
    finish(ax, "Estimated share of wrong labels", "round", "", True)
    return fig
