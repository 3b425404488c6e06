"""Results with one row per sample: their length, their rows, a pandas table, and a line in place of pages of numbers."""

from collections import namedtuple
from importlib import import_module
from typing import TYPE_CHECKING, Any, Dict, Iterator, Sequence

import numpy as np

from tllib_ext.errors import UserError

if TYPE_CHECKING:
    import pandas

__all__ = ["Columns"]


class Columns:
    """Base of a dataclass whose attributes are arrays of one length; it defines :meth:`columns`.

    Examples::

        >>> class Pairs(Columns):
        ...     def columns(self):
        ...         return {"name": np.array(["ant", "bee"]), "score": np.array([0.5, 0.25])}
        >>> len(Pairs()), [row.score for row in Pairs()]
        (2, [0.5, 0.25])
        >>> Pairs()
        Pairs(2 rows: name, score)
    """

    def columns(self) -> Dict[str, np.ndarray]:
        """Every column by its name, classes by their names."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    def __bool__(self) -> bool:
        return True  # a result without rows is a result

    def __iter__(self) -> Iterator[Any]:
        columns = self.columns()
        row = namedtuple("Row", list(columns))  # type: ignore[misc]
        return map(row._make, zip(*(column.tolist() for column in columns.values())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows: {', '.join(self.columns())})"

    def to_frame(self) -> "pandas.DataFrame":
        """The rows as a pandas table; pandas is needed for this only."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError:
            raise UserError("to_frame() needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.columns())


def class_names(labels: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The names of class numbers, empty for a number without one; the numbers themselves without ``names``."""
    if not names:
        return labels
    table = np.array([*names, ""], dtype=object)
    return table[np.where(labels < len(names), labels, len(names))]
