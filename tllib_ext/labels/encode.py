"""Labels of any hashable kind to class numbers and back; -1 stands for unknown."""

from typing import Hashable, Sequence, Tuple, Union

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from tllib_ext.errors import UserError

__all__ = ["UNKNOWN", "Labels", "as_labels", "encode_labels", "decode_labels"]

#: the label of a sample that is of none of the known classes.
UNKNOWN = -1

#: one label per row
Labels = Union[ArrayLike, Sequence[Hashable]]


def as_labels(values: Labels, name: str) -> np.ndarray:
    """Labels as a one-dimensional array. Tuples stay whole, values of several kinds keep their kinds.

    Args:
        values (array-like): labels
        name (str): of the argument, for messages

    Examples::

        >>> as_labels([("cat", 2), ("ant", 1)], "y")
        array([('cat', 2), ('ant', 1)], dtype=object)
    """
    if values is None:
        raise UserError(f"{name}: Expected array-like (array or non-string sequence), got None")
    if isinstance(values, (list, tuple)):
        kinds = {type(value) for value in values}
        # NumPy would make columns of tuples, and strings of numbers that stand beside strings.
        if tuple in kinds or len(kinds) > 1:
            values = np.fromiter(values, object, len(values))
    labels = column_or_1d(values, warn=True)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name=name)
        check_classification_targets(labels)
    missing = [i for i, label in enumerate(labels.tolist()) if label is None or label != label] if labels.dtype == object else []
    if missing:
        raise UserError(f"{name} has no label in {len(missing)} rows, the first is row {missing[0]}: remove these rows")
    return labels


def encode_labels(values: Labels, size: int, unknown: Hashable = UNKNOWN) -> Tuple[np.ndarray, np.ndarray]:
    """The classes in the source labels ``y``, sorted if they can be compared, and the number of each label's class.

    Args:
        values (array-like): labels of any hashable kind
        size (int): number of rows of ``X``
        unknown (hashable, optional): the label of unknown, which no class may have. Default: -1

    Examples::

        >>> classes, numbers = encode_labels(["cat", "ant", "cat"], 3)
        >>> classes.tolist(), numbers.tolist()
        (['ant', 'cat'], [1, 0, 1])
    """
    labels = as_labels(values, "y")
    if len(labels) != size:
        raise UserError(f"X has {size} rows, y has {len(labels)} labels: expected one label per row")
    if labels.dtype != object:
        classes, numbers = np.unique(labels, return_inverse=True)
    else:
        found = list(dict.fromkeys(labels.tolist()))
        try:
            found = sorted(found)
        except TypeError:  # of several kinds: they stay in order of appearance
            pass
        classes, position = np.fromiter(found, object, len(found)), {label: k for k, label in enumerate(found)}
        numbers = np.fromiter((position[label] for label in labels.tolist()), np.int64, size)
    if len(classes) < 2:
        raise UserError(f"y holds {len(classes)} class: expected at least 2 classes")
    if unknown in classes.tolist():
        raise UserError(
            f"y holds the label {unknown!r}, which predict returns for unknown: give that class another label, or unknown"
            " another one with unknown_label="
        )
    return classes, numbers.astype(np.int64)


def decode_labels(numbers: np.ndarray, unknown: np.ndarray, classes: np.ndarray, label: Hashable = UNKNOWN) -> np.ndarray:
    """Class numbers back to labels, and ``label`` where ``unknown``.

    Whole and float labels with a number for unknown, and strings with a string, give an array of their kind; everything
    else gives an object array.

    Examples::

        >>> decode_labels(np.array([1, 0]), np.array([False, True]), np.array(["ant", "cat"]))
        array(['cat', -1], dtype=object)
        >>> decode_labels(np.array([1, 0]), np.array([False, True]), np.array(["ant", "cat"]), "unknown")
        array(['cat', 'unknown'], dtype='<U7')
    """
    kind: Union[type, np.dtype] = object
    whole = isinstance(label, (int, np.integer)) and not isinstance(label, (bool, np.bool_))
    if (classes.dtype.kind in "iu" and whole) or (classes.dtype.kind == "f" and isinstance(label, (int, float, np.number))):
        kind = np.dtype(np.int64) if classes.dtype.kind == "u" else classes.dtype
    elif classes.dtype.kind == "U" and isinstance(label, str):
        kind = np.promote_types(classes.dtype, np.asarray(label).dtype)
    labels = classes[numbers].astype(kind)
    labels[unknown] = label
    return labels
