"""What the estimator checks before a fit: its parameters, the rows of both domains, features of different scale."""

from typing import Any, Collection, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from tllib_ext.errors import UserError
from tllib_ext.labels.audit import LabelAudit
from tllib_ext.labels.encode import Labels, as_labels

__all__ = [
    "Rows",
    "check_answers",
    "check_parameters",
    "describe_scale",
    "issue_table",
    "source_rows",
    "split_rows",
    "take_labels",
]

#: medians over the columns: of the factor between the standard deviations of both domains, and of the distance between
#: their means in standard deviations of the source. Pairs of domains of Office-31, PACS and Transfer reach 1.8 and 1.0.
_FACTOR, _SHIFT = 3.0, 2.0
#: a column is standardised if its mean is 0 and its deviation is 1 up to this
_STANDARD = 1e-2


def check_parameters(**parameters: Any) -> None:
    """Raise for a parameter of :class:`~tllib_ext.estimator.NoisyUniDA` that no fit can use."""
    for name, least in (("steps", 1), ("batch_size", 2), ("bottleneck_dim", 1), ("seed", 0)):
        value = parameters[name]
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
            raise UserError(f"{name}={value!r}: expected a whole number, at least {least}")
    for name in ("lr", "bottleneck_lr_mult"):
        if not parameters[name] > 0:
            raise UserError(f"{name}={parameters[name]!r}: expected a number above 0")
    if parameters["noise_rate"] is not None and not 0 <= parameters["noise_rate"] < 1:
        raise UserError(f"noise_rate={parameters['noise_rate']!r}: expected a share in [0, 1), or None to estimate it")
    if isinstance(parameters["unknown_label"], bool) or not isinstance(
        parameters["unknown_label"], (int, float, str, np.generic)
    ):
        raise UserError(f"unknown_label={parameters['unknown_label']!r}: expected a number or a string, such as 'unknown'")
    if not isinstance(parameters["hparams"] or {}, Mapping):
        raise UserError(f"hparams={parameters['hparams']!r}: expected a dict of hyper-parameters, such as {{'eta': 0.1}}")


def check_answers(index: ArrayLike, labels: Labels, size: int, known: Collection[object]) -> Dict[int, object]:
    """Row to label, of answers about a target of ``size`` rows; ``known`` are the classes and the label of unknown.

    Examples::

        >>> check_answers([2, 0], ["cat", "ant"], 3, {"ant", "cat", -1})
        {2: 'cat', 0: 'ant'}
    """
    given, rows = as_labels(labels, "labels").tolist(), np.atleast_1d(np.asarray(index))
    if rows.shape != (len(given),) or not (len(rows) == 0 or np.issubdtype(rows.dtype, np.integer)):
        raise UserError(f"{len(given)} labels for an index of shape {rows.shape}: expected one row number for each label")
    if len(rows) and not (0 <= rows.min() and rows.max() < size):
        raise UserError(f"index has rows {rows.min()} to {rows.max()}: expected 0 to {size - 1}, rows of the target")
    answers: Dict[int, object] = {}
    for row, label in zip(rows.tolist(), given):
        if label not in known:
            raise UserError(f"label {label!r} of row {row}: expected one of classes_, or unknown_label for unknown")
        if answers.setdefault(row, label) != label:
            raise UserError(f"row {row} has the labels {answers[row]!r} and {label!r}: expected one")
    return answers


class Rows:
    """An array as :class:`~tllib_ext.training.domain.Domain` reads a view."""

    def __init__(self, features: np.ndarray, targets: Optional[np.ndarray] = None):
        self.features, self.targets = features, targets

    def __len__(self) -> int:
        return len(self.features)


def source_rows(sample_domain: ArrayLike, size: int) -> np.ndarray:
    r"""Which rows are of the source, :math:`(N,)` bool: those whose domain is not negative, as in skada.

    Args:
        sample_domain (array-like): a whole number per row, or one for all
        size (int): number of rows

    Examples::

        >>> source_rows([1, 1, -2], 3).tolist()
        [True, True, False]
    """
    domain = np.asarray(sample_domain)
    if domain.ndim == 0:
        domain = np.full(size, domain)
    if domain.shape != (size,):
        raise UserError(f"sample_domain has the shape {domain.shape}, X has {size} rows: expected one number per row")
    domain = check_array(domain, ensure_2d=False, ensure_min_samples=0, input_name="sample_domain", dtype=np.float64)
    if not (domain >= 0).any():
        raise UserError(
            "sample_domain has negative numbers only, which mean target: expected source rows too, with a positive one"
        )
    return domain >= 0


def take_labels(y: Labels, rows: np.ndarray) -> Labels:
    """The labels of some rows, each of the kind it has in ``y``; the other labels are not looked at.

    Examples::

        >>> take_labels(["cat", "ant", None], np.array([True, True, False]))
        ['cat', 'ant']
    """
    if y is None:
        raise UserError("y: Expected array-like (array or non-string sequence), got None")
    values: Sequence[object] = y if isinstance(y, (list, tuple)) else np.asarray(y)  # type: ignore[assignment]
    if len(values) != len(rows):
        raise UserError(f"X has {len(rows)} rows, y has {len(values)} labels: expected one label per row")
    if isinstance(values, np.ndarray):
        return values[rows]
    return [value for value, taken in zip(values, rows) if taken]


def split_rows(x: np.ndarray, y: Labels, sample_domain: ArrayLike) -> Tuple[np.ndarray, Labels, Optional[np.ndarray], np.ndarray]:
    """Source features, their labels, target features or None, and the rows of ``x`` that are the source."""
    source = source_rows(sample_domain, len(x))
    for name, number in (("source", np.count_nonzero(source)), ("target", np.count_nonzero(~source))):
        if number == 1:
            raise UserError(f"sample_domain marks 1 {name} row: expected at least 2")
    return x[source], take_labels(y, source), None if source.all() else x[~source], np.flatnonzero(source)


class _Spread(NamedTuple):
    mean: np.ndarray
    std: np.ndarray

    @property
    def standardised(self) -> bool:
        """Whether nearly every column has mean 0 and deviation 1."""
        return bool((np.maximum(np.abs(self.mean), np.abs(self.std - 1)) < _STANDARD).mean() > 0.9)


def describe_scale(source: np.ndarray, target: np.ndarray) -> Optional[str]:
    r"""A warning if the columns of both domains differ in scale or position as no change of domain explains, else None.

    Shape:
        - source: :math:`(N_s, D)`, target: :math:`(N_t, D)`

    Examples::

        >>> x = np.random.default_rng(0).normal(3, 5, (100, 4))
        >>> describe_scale(x, x + 1) is None
        True
        >>> describe_scale((x - x.mean(0)) / x.std(0), x)[:56]
        'X is standardised and Xt is not: the columns of Xt have '
    """
    columns = [_Spread(x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)) for x in (source, target)]
    varied = np.minimum(columns[0].std, columns[1].std) > 1e-9
    if not varied.any():
        return None
    s, t = (_Spread(spread.mean[varied], spread.std[varied]) for spread in columns)
    factor = float(np.median(t.std / s.std))
    typical = float(np.exp(np.median(np.abs(np.log(t.std / s.std)))))
    shift = float(np.median(np.abs(t.mean - s.mean) / s.std))
    if typical <= _FACTOR and shift <= _SHIFT:
        return None
    difference = (
        f"{factor:.3g} times the standard deviation of those of the source, and their means are {shift:.2g} of the source's"
        " standard deviations away (medians over the columns)"
    )
    if s.standardised != t.standardised:
        scaled, other = ("X", "Xt") if s.standardised else ("Xt", "X")
        cause = f"{scaled} is standardised and {other} is not: the columns of Xt have {difference}"
    else:
        cause = f"the source and the target have features of different scale: the columns of the target have {difference}"
    return (
        f"{cause}. Predictions are of little use then: transform both domains by the same numbers. A pipeline transforms X only;"
        " pass both domains in X, fit(X, y, sample_domain=...), with negative numbers for the target rows"
    )


def issue_table(classes: np.ndarray, given: np.ndarray, audit: LabelAudit, rows: np.ndarray) -> np.ndarray:
    """Labels for which another class fits better, most suspicious first: fields index, given, suggested, suspicion."""
    chosen = np.flatnonzero((audit.suggested != given) & (audit.suspicion > 0))
    chosen = chosen[np.argsort(-audit.suspicion[chosen], kind="stable")]
    kind = classes.dtype
    issues = np.empty(len(chosen), [("index", np.int64), ("given", kind), ("suggested", kind), ("suspicion", np.float64)])
    issues["index"], issues["suspicion"] = rows[chosen], audit.suspicion[chosen]
    issues["given"], issues["suggested"] = classes[given[chosen]], classes[audit.suggested[chosen]]
    return issues
