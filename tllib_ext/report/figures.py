"""Figures of comparisons, by matplotlib's object interface: no global state, no display."""

import io
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from tllib_ext.report.tables import MEAN, Stat, Table

__all__ = ["Panel", "bars_figure", "lines_figure", "density_figure", "png_bytes"]

#: twelve colours that stay apart, the paper's method in the darkest.
COLOURS = ("#a6cee3", "#e69f00", "#56b4e9", "#009e73", "#b15928", "#d55e00", "#cc79a7", "#999999", "#6a3d9a", "#b2df8a",
           "#fb9a99", "#666666")  # fmt: skip


def png_bytes(figure: Any) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140, bbox_inches="tight")
    return buffer.getvalue()


def plain(text: str) -> str:
    """Text that matplotlib must not read as mathematics."""
    return text.replace("$", r"\$")


def bars_figure(tables: Sequence[Table], axis: str) -> Any:
    """A panel per table: one bar per row (the mean column, or the only one), dots for the tasks, diamonds for the paper.

    Args:
        tables (sequence of Table): same rows in each
        axis (str): label of the horizontal axis
    """
    from matplotlib.figure import Figure

    rows = tables[0].rows
    figure = Figure(figsize=(max(5.0, 4.2 * len(tables)), 1.4 + 0.36 * len(rows)))
    for number, (panel, table) in enumerate(zip(figure.subplots(1, len(tables), squeeze=False)[0], tables)):
        column = MEAN if MEAN in table.columns else table.columns[-1]
        tasks = [name for name in table.columns if name != column]
        for y, row in enumerate(rows):
            found = table.stats.get((row, column))
            if found is not None:
                best = row in table.best(column)
                panel.barh(y, 100 * found.mean, 0.7, xerr=None if found.std is None else 100 * found.std,
                           color="#0b5394" if best else "#9fc5e8", error_kw={"lw": 1, "capsize": 2}, zorder=2)  # fmt: skip
            else:
                panel.text(1, y, "missing", va="center", color="#999999", fontsize=8)
        for index, task in enumerate(tasks):
            points = [(100 * table.stats[row, task].mean, y) for y, row in enumerate(rows) if (row, task) in table.stats]
            if points:
                panel.scatter(*zip(*points), s=10, color=f"C{index + 1}", label=plain(task), zorder=3)
        points = [(table.paper[row, column], y) for y, row in enumerate(rows) if (row, column) in table.paper]
        if points:
            panel.scatter(*zip(*points), s=34, marker="D", facecolors="none", edgecolors="black", label="paper", zorder=4)
        panel.set(xlim=(0, 100), yticks=range(len(rows)), xlabel=plain(axis), title=plain(table.title))
        panel.set_yticklabels(map(plain, rows) if number == 0 else [])
        panel.invert_yaxis()
        panel.grid(axis="x", alpha=0.3, zorder=0)
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="lower center", ncols=min(8, len(labels)), bbox_to_anchor=(0.5, -0.06), frameon=False)
    figure.tight_layout()
    return figure


class Panel(NamedTuple):
    """One pair of axes: title, horizontal axis, and per row its points."""

    title: str
    axis: str
    lines: Dict[str, List[Tuple[float, Stat]]]


def lines_figure(panels: Sequence[Panel], axis: str, columns: int = 3, highlight: str = "divergence") -> Any:
    """Curves with the spread over seeds as bands, one panel each.

    Args:
        panels (sequence of Panel): in order
        axis (str): label of the vertical axis
        columns (int): panels side by side
        highlight (str): the row drawn boldly
    """
    from matplotlib.figure import Figure

    across = min(columns, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.3 * across, 3.4 * down + 0.5))
    # One scale per row: a change of half a point must not look like one of fifty.
    axes = figure.subplots(down, across, squeeze=False, sharey="row").ravel()
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    for place, panel in zip(axes, panels):
        for name, points in panel.lines.items():
            if not points:
                continue
            xs = [x for x, _ in points]
            means = [100 * found.mean for _, found in points]
            spread = [100 * (found.std or 0.0) for _, found in points]
            bold = name == highlight
            colour = "#0b5394" if bold else COLOURS[names.index(name) % len(COLOURS)]
            place.plot(xs, means, marker="o", ms=3, lw=2.2 if bold else 1.2, color=colour, label=plain(name), zorder=2 + bold)
            low, high = zip(*((mean - s, mean + s) for mean, s in zip(means, spread)))
            place.fill_between(xs, low, high, color=colour, alpha=0.15, lw=0)
        place.set(title=plain(panel.title), xlabel=plain(panel.axis), ylabel=plain(axis))
        place.grid(alpha=0.3)
    for place in axes[len(panels) :]:
        place.remove()
    if len(names) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=min(8, len(labels)), bbox_to_anchor=(0.5, -0.04), frameon=False)
    figure.tight_layout()
    return figure


def density_figure(panels: Sequence[Tuple[str, Sequence[float], Sequence[float], float]], axis: str) -> Any:
    """Densities of a score on common and on private target images (Gaussian kernel, Scott's rule) and the threshold.

    Args:
        panels (sequence of tuples): title, scores of common images, scores of private ones, threshold (NaN: none)
        axis (str): label of the horizontal axis
    """
    import numpy as np
    from matplotlib.figure import Figure
    from scipy.stats import gaussian_kde

    figure = Figure(figsize=(4.8 * len(panels), 3.4))
    for place, (title, common, private, threshold) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        everything = np.concatenate([np.asarray(common, float), np.asarray(private, float)])
        grid = np.linspace(min(0.0, everything.min()), everything.max() * 1.05 + 1e-6, 400)
        for values, name, colour in ((common, "common classes", "#0b5394"), (private, "target private classes", "#d55e00")):
            if len(values) > 1 and np.ptp(values) > 0:  # a density needs two different values
                curve = gaussian_kde(np.asarray(values, float), bw_method="scott")(grid)
                place.plot(grid, curve, color=colour, label=name)
                place.fill_between(grid, 0, curve, color=colour, alpha=0.2, lw=0)
        if np.isfinite(threshold):
            place.axvline(threshold, color="black", ls="--", lw=1, label="threshold")
        place.set(title=plain(title), xlabel=plain(axis), ylabel="density", ylim=(0, None))
        if place.get_legend_handles_labels()[0]:
            place.legend(frameon=False)
    figure.tight_layout()
    return figure
