r"""Tables of repeated runs: ``mean ± std (n)`` per cell, a published number beside it, best in bold, missing as missing.

The standard deviation is the sample's (ddof 1) over seeds; with one run there is none and none is shown. A mean over
tasks is taken within each seed first, over seeds that have every task, so that its spread is that of the mean.
"""

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tllib_ext.typing import Record

__all__ = ["MEAN", "Entry", "Stat", "Table", "make_table", "stat"]

#: printed where there is no number.
MISSING = "—"
#: the column that averages the others.
MEAN = "mean"
#: metrics where less is better.
_LOW = ("fpr_known_at_95_unknown_recall",)


class Stat(NamedTuple):
    """Mean, sample standard deviation (None for one value) and number of runs."""

    mean: float
    std: Optional[float]
    n: int


def stat(values: Sequence[float]) -> Optional[Stat]:
    r"""Mean and :math:`\sqrt{\sum (x - \bar x)^2 / (n - 1)}`; None without values.

    Examples::

        >>> stat([0.2, 0.4]), stat([0.5]), stat([])
        (Stat(mean=0.30000000000000004, std=0.1414213562373095, n=2), Stat(mean=0.5, std=None, n=1), None)
    """
    values = [float(value) for value in values if value is not None and math.isfinite(value)]
    if not values:
        return None
    return Stat(sum(values) / len(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


class Entry(NamedTuple):
    """The text of a cell, and whether it is the best of its column."""

    text: str
    bold: bool = False


@dataclass
class Table:
    """Numbers (fractions in 0..1) by row and column, published numbers in percent, and a legend.

    Args:
        title (str): heading
        rows, columns (list of str): in order
        stats (dict): (row, column) -> :class:`Stat`; absent where there is no run
        paper (dict): (row, column) -> published percentage
        legend (list of str): lines under the table
        corner (str): heading of the column of row names
        apart (bool): published numbers and differences in columns of their own instead of in brackets
        low (bool): the smallest is best
        digits (int): after the point
        told (dict): row -> what the method was told, a last column; empty: no such column
    """

    title: str
    rows: List[str]
    columns: List[str]
    stats: Dict[Tuple[str, str], Stat]
    paper: Dict[Tuple[str, str], float] = field(default_factory=dict)
    legend: List[str] = field(default_factory=list)
    corner: str = "method"
    apart: bool = False
    low: bool = False
    digits: int = 1
    told: Dict[str, str] = field(default_factory=dict)

    def best(self, column: str) -> List[str]:
        """The rows with the best mean of a column after rounding; none if the table has one row."""
        if len(self.rows) < 2:
            return []
        shown = {row: round(100 * self.stats[row, column].mean, self.digits) for row in self.rows if (row, column) in self.stats}
        wanted = (min if self.low else max)(shown.values(), default=None)
        return [row for row, value in shown.items() if value == wanted]

    def header(self) -> List[str]:
        """The corner and the columns, with the columns of the published numbers where ``apart``."""
        names = [self.corner]
        for column in self.columns:
            names += [column, f"{column} paper", "difference"] if self._has_paper(column) and self.apart else [column]
        return [*names, "told"] if self.told else names

    def _has_paper(self, column: str) -> bool:
        return any((row, column) in self.paper for row in self.rows)

    def entries(self) -> List[List[Entry]]:
        """The cells as they are printed, row by row."""
        best = {column: self.best(column) for column in self.columns}
        cells = {row: [e for column in self.columns for e in self._cell(row, column, row in best[column])] for row in self.rows}
        told = {row: [Entry(self.told.get(row) or MISSING)] if self.told else [] for row in self.rows}
        return [[Entry(row), *line, *told[row]] for row, line in cells.items()]

    def _cell(self, row: str, column: str, bold: bool) -> List[Entry]:
        found, paper = self.stats.get((row, column)), self.paper.get((row, column))
        text = MISSING
        if found is not None:
            spread = "" if found.std is None else f" ± {100 * found.std:.{self.digits}f}"
            text = f"{100 * found.mean:.{self.digits}f}{spread} ({found.n})"
        if self.apart and self._has_paper(column):
            gap = MISSING if found is None or paper is None else f"{100 * found.mean - paper:+.{self.digits}f}"
            return [Entry(text, bold), Entry(MISSING if paper is None else f"{paper:.2f}"), Entry(gap)]
        beside = "" if paper is None or self.apart else f" [{paper:.{self.digits}f}]"
        return [Entry(text + beside, bold)]


def make_table(
    records: Sequence[Record], metric: str, rows: Sequence[str], columns: Sequence[str], mean: bool = True,
    column_key: str = "task", **table: Any,
) -> Table:  # fmt: skip
    """A table from run records: ``rows`` by ``record["row"]``, ``columns`` by ``record[column_key]``, seeds pooled.

    Examples::

        >>> runs = [{"row": "a", "task": t, "seed": s, "os": v} for t, s, v in
        ...         [("A2D", 0, .5), ("A2D", 1, .7), ("W2A", 0, .9), ("W2A", 1, .9)]]
        >>> made = make_table(runs, "os", ["a", "b"], ["A2D", "W2A"], title="OS")
        >>> [entry.text for entry in made.entries()[0]]
        ['a', '60.0 ± 14.1 (2)', '90.0 ± 0.0 (2)', '75.0 ± 7.1 (2)']
        >>> [entry.text for entry in made.entries()[1]]
        ['b', '—', '—', '—']
    """
    values: Dict[Tuple[str, str], Dict[object, float]] = {}
    for record in records:
        value = record.get(metric)
        if isinstance(value, (int, float)) and math.isfinite(value):
            values.setdefault((str(record["row"]), str(record[column_key])), {})[record.get("seed")] = float(value)
    stats = {key: found for key, by_seed in values.items() if (found := stat(list(by_seed.values()))) is not None}
    columns = list(columns)
    if mean and len(columns) > 1:
        for row in rows:
            parts = [values.get((row, column), {}) for column in columns]
            seeds = [seed for seed in parts[0] if all(seed in part for part in parts)]
            found = stat([sum(part[seed] for part in parts) / len(parts) for seed in seeds])
            if found is not None:
                stats[row, MEAN] = found
        columns = [*columns, MEAN]
    told = {str(record["row"]): str(record["told"]) for record in records if record.get("told") is not None}
    return Table(rows=list(rows), columns=columns, stats=stats, low=metric in _LOW, told=told, **table)
