"""The plots of a comparison: bars by method, curves over a setting."""

from typing import Dict, List, NamedTuple, Sequence, Tuple

from matplotlib.figure import Figure

from tllib_ext.report.style import BLUE, FONT_SIZE, GREY, axes_grid, finish, plain
from tllib_ext.report.tables import MEAN, Stat, Table

__all__ = ["Panel", "bars_figure", "lines_figure"]

#: twelve colours that can be told apart; the highlighted method is drawn in the style's blue.
COLOURS = ("#a6cee3", "#e69f00", "#56b4e9", "#009e73", "#b15928", "#d55e00", "#cc79a7", "#999999", "#6a3d9a", "#b2df8a",
           "#fb9a99", "#666666")  # fmt: skip
_PALE = "#9fc5e8"


def bars_figure(tables: Sequence[Table], axis: str) -> Figure:
    """A panel per table, two side by side: one bar per row (the mean column, or the only one), dots for the tasks, diamonds
    for the paper.

    Args:
        tables (sequence of Table): same rows in each
        axis (str): label of the horizontal axis
    """
    rows = tables[0].rows
    across, down = min(2, len(tables)), -(-len(tables) // 2)
    figure, axes = axes_grid(down, across, max(5.0, 3.9 * across), down * (0.8 + 0.26 * len(rows)) + 0.6)
    for number, (ax, table) in enumerate(zip(axes, tables)):
        column = MEAN if MEAN in table.columns else table.columns[-1]
        best = table.best(column)
        for y, row in enumerate(rows):
            found = table.stats.get((row, column))
            if found is None:
                ax.text(1, y, "missing", va="center", color=GREY, fontsize=FONT_SIZE)
                continue
            spread = None if found.std is None else 100 * found.std
            colour = BLUE if row in best else _PALE
            ax.barh(y, 100 * found.mean, 0.7, xerr=spread, color=colour, error_kw={"lw": 1, "capsize": 2}, zorder=2)
        for index, task in enumerate(name for name in table.columns if name != column):
            points = [(100 * table.stats[row, task].mean, y) for y, row in enumerate(rows) if (row, task) in table.stats]
            if points:
                xs, ys = zip(*points)
                ax.scatter(xs, ys, s=10, color=f"C{index + 1}", label=plain(task), zorder=3)
        points = [(table.paper[row, column], y) for y, row in enumerate(rows) if (row, column) in table.paper]
        if points:
            xs, ys = zip(*points)
            ax.scatter(xs, ys, s=34, marker="D", facecolors="none", edgecolors="black", label="paper", zorder=4)
        ax.set(xlim=(0, 100), yticks=range(len(rows)))
        ax.set_yticklabels(map(plain, rows) if number % across == 0 else [])
        ax.invert_yaxis()
        ax.grid(False, axis="y")
        finish(ax, plain(table.title), plain(axis))
    for ax in axes[len(tables) :]:
        ax.remove()
    _legend_below(figure, axes[len(tables) - 1])
    return figure


class Panel(NamedTuple):
    """One pair of axes: title, horizontal axis, per row its points; vertical axis (default: the figure's) and its factor."""

    title: str
    axis: str
    lines: Dict[str, List[Tuple[float, Stat]]]
    vertical: str = ""
    factor: float = 100.0


def lines_figure(panels: Sequence[Panel], axis: str, columns: int = 3, highlight: str = "divergence") -> Figure:
    """Curves with the spread over seeds as bands, one panel each.

    Args:
        panels (sequence of Panel): in order
        axis (str): label of the vertical axis
        columns (int): panels side by side
        highlight (str): the row drawn with a thicker line
    """
    across = min(columns, len(panels))
    down = -(-len(panels) // across)
    # One scale per row of panels: half a point must not look like fifty.
    figure, axes = axes_grid(down, across, 4.3 * across, 3.4 * down + 0.5, sharey="row")
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    for ax, panel in zip(axes, panels):
        for name, points in panel.lines.items():
            if not points:
                continue
            xs = [x for x, _ in points]
            means = [panel.factor * found.mean for _, found in points]
            spread = [panel.factor * (found.std or 0.0) for _, found in points]
            bold = name == highlight
            colour = BLUE if bold else COLOURS[names.index(name) % len(COLOURS)]
            ax.plot(xs, means, marker="o", ms=3, lw=2.2 if bold else 1.2, color=colour, label=plain(name), zorder=2 + bold)
            low, high = zip(*((mean - s, mean + s) for mean, s in zip(means, spread)))
            ax.fill_between(xs, low, high, color=colour, alpha=0.15, lw=0)
        finish(ax, plain(panel.title), plain(panel.axis), plain(panel.vertical or axis))
    for ax in axes[len(panels) :]:
        ax.remove()
    if len(names) > 1:
        _legend_below(figure, axes[0])
    return figure


def _legend_below(figure: Figure, ax: object) -> None:
    handles, labels = ax.get_legend_handles_labels()  # type: ignore[attr-defined]
    if handles:
        width = max(1, int(figure.get_figwidth() / 1.4))
        figure.legend(handles, labels, loc="outside lower center", ncols=min(width, len(labels)), frameon=False,
                      fontsize=FONT_SIZE)  # fmt: skip
