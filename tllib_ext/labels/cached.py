"""The label model with a small memory: a grid asks for the same estimate for every method."""

import hashlib
from typing import Dict

import numpy as np

from tllib_ext.labels.transition import LabelModel, estimate_labels

__all__ = ["estimate_once"]

#: the last answers, by their questions, and how many: a grid goes through three sources in turn.
_LAST: Dict[bytes, LabelModel] = {}
_KEPT = 4


def estimate_once(features: np.ndarray, labels: np.ndarray, num_classes: int, seed: int = 0) -> LabelModel:
    """:func:`estimate_labels`, remembering the last answers: a grid asks for every method on the same data in turn."""
    question = hashlib.blake2b(repr((features.shape, features.dtype, num_classes, seed)).encode())
    question.update(np.ascontiguousarray(features))
    question.update(np.ascontiguousarray(labels))
    key = question.digest()
    if key not in _LAST:
        model = estimate_labels(features, labels, num_classes, seed=seed)
        while len(_LAST) >= _KEPT:
            del _LAST[next(iter(_LAST))]
        _LAST[key] = model
    return _LAST[key]
