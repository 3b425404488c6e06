"""Conversion and checks of the evaluator's inputs: arrays or tensors in, numpy arrays out."""

from typing import TYPE_CHECKING, Dict, Tuple, cast

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.typing import Values

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["argmax", "check_possible", "class_labels", "count_once", "integers", "same_length", "scores", "to_numpy"]


def to_numpy(values: Values) -> np.ndarray:
    """An array or a tensor of any device as numpy array; does not import torch."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    tensor = cast("Tensor", values).detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no bfloat16
        return tensor.float().numpy()


def integers(name: str, values: Values) -> np.ndarray:
    """One integer per image; ``name`` stands in the error message."""
    array = to_numpy(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise UserError(f"{name}: expected one integer per image, found {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def class_labels(name: str, values: Values, names: Tuple[str, ...]) -> np.ndarray:
    """One label per image, each a position in ``names``."""
    array = integers(name, values)
    if len(array) and not 0 <= array.min() <= array.max() < len(names):
        raise UserError(f"{name}: expected 0..{len(names) - 1}, found {array.min()}..{array.max()}")
    return array


def scores(values: Values) -> np.ndarray:
    """One number per image; infinite values are allowed, NaN is an error."""
    array = to_numpy(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "fiu"):
        raise UserError(f"score: expected one number per image, found {array.dtype} of shape {array.shape}")
    bad = np.isnan(array)
    if bad.any():
        where = f"NaN for {bad.sum()} of {len(bad)} images, the first at row {bad.argmax()}"
        raise UserError(f"score: {where}; look for a diverged network")
    return array.astype(np.float64)


def argmax(probs: Values, split: LabelSplit) -> np.ndarray:
    """The closed-set label: the first of the most probable source classes of every row."""
    array = to_numpy(probs)
    if array.ndim != 2 or array.shape[1] != split.num_source:
        raise UserError(f"probs: expected N rows of {split.num_source} classes, found shape {array.shape}")
    if np.isnan(array).any():
        raise UserError("probs: NaN; look for a diverged network")
    return array.argmax(1)


def same_length(columns: Dict[str, np.ndarray]) -> None:
    """Raise unless all columns have one length."""
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise UserError("expected as many of each: " + ", ".join(f"{n} {name}" for name, n in sizes.items()))


def count_once(columns: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Keep one row per image. Rows are sorted by score too, so that the kept row does not depend on their order."""
    order = np.lexsort((columns["score"], columns["index"]))
    columns = {name: column[order] for name, column in columns.items()}
    index = columns["index"]
    again = np.r_[False, index[1:] == index[:-1]]
    for name, column in columns.items():
        # Scores of one image differ between batches by rounding, in half precision by about 0.1 %.
        equal = column[1:] == column[:-1]
        if name == "score":
            equal |= np.isclose(column[1:], column[:-1], rtol=1e-2, atol=1e-3)
        bad = again[1:] & ~equal
        if bad.any():
            at = int(bad.argmax())
            found = f"image {index[at]} was evaluated twice with different {name} ({column[at]} and {column[at + 1]})"
            raise UserError(f"{found}: call reset() between evaluations, or merge shards of one model only")
    return {name: column[~again] for name, column in columns.items()}


def check_possible(labels: np.ndarray, split: LabelSplit) -> None:
    """Raise if target images have a source-private label, or are unknown although the split has no private class."""
    counts = np.bincount(labels, minlength=len(split.label_names))
    for name in split.source_private:
        if n := counts[split.source_index(name)]:
            raise UserError(f"{n} target images are labelled {name!r}, a source-private class of the split {split}")
    if (n := counts[split.unknown]) and not split.target_private:
        raise UserError(f"{n} target images are labelled unknown, but the split {split} has no target-private class")
