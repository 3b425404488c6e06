"""The label model with a small cache: a grid needs the same estimate for every method."""

import hashlib
import threading
from typing import Callable, Dict, Optional, Tuple, TypeVar

import numpy as np

from tllib_ext.labels.issues import LabelIssues, judge_labels
from tllib_ext.labels.transition import FittedViews, LabelModel, checked, fit_labels

__all__ = ["estimate_once", "issues_once"]

#: the last results by a digest of their arguments, and how many: a grid alternates between three sources.
_FITS: Dict[bytes, Tuple[LabelModel, Optional[FittedViews]]] = {}
_ISSUES: Dict[bytes, Optional[LabelIssues]] = {}
_KEPT = 4
_LOCK = threading.Lock()

T = TypeVar("T")


def _once(results: Dict[bytes, T], key: bytes, make: Callable[[], T]) -> T:
    with _LOCK:
        if key in results:
            return results[key]
    found = make()  # two threads may both make it, and find the same
    with _LOCK:
        while len(results) >= _KEPT:
            del results[next(iter(results))]
        results[key] = found
    return found


def _digest(features: np.ndarray, labels: np.ndarray, num_classes: int, seed: int) -> bytes:
    digest = hashlib.blake2b(repr((features.shape, features.dtype, num_classes, seed)).encode())
    digest.update(np.ascontiguousarray(features).data)
    digest.update(np.ascontiguousarray(labels).data)
    return digest.digest()


def estimate_once(features: np.ndarray, labels: np.ndarray, num_classes: int, seed: int = 0) -> LabelModel:
    """:func:`~tllib_ext.labels.transition.estimate_labels` with a cache of the last results."""
    key = _digest(features, labels, num_classes, seed)
    return _once(_FITS, key, lambda: fit_labels(*checked(features, labels, num_classes), num_classes, seed))[0]


def issues_once(features: np.ndarray, labels: np.ndarray, num_classes: int, seed: int = 0) -> Optional[LabelIssues]:
    """:func:`~tllib_ext.labels.issues.find_label_issues` with a cache of the last results; None if only one class has labels."""
    key = _digest(features, labels, num_classes, seed)

    def judge() -> Optional[LabelIssues]:
        x, y = checked(features, labels, num_classes)
        model, fitted = _once(_FITS, key, lambda: fit_labels(x, y, num_classes, seed))
        return None if fitted is None else judge_labels(x, y, np.arange(num_classes), model, fitted, seed)

    return _once(_ISSUES, key, judge)
