"""The label model with a small cache: a grid needs the same estimate for every method."""

import hashlib
from typing import Dict

import numpy as np

from tllib_ext.labels.transition import LabelModel, estimate_labels

__all__ = ["estimate_once"]

#: the last results by a digest of their arguments, and how many: a grid alternates between three sources.
_LAST: Dict[bytes, LabelModel] = {}
_KEPT = 4


def estimate_once(features: np.ndarray, labels: np.ndarray, num_classes: int, seed: int = 0) -> LabelModel:
    """:func:`estimate_labels` with a cache of the last results."""
    digest = hashlib.blake2b(repr((features.shape, features.dtype, num_classes, seed)).encode())
    digest.update(np.ascontiguousarray(features).data)
    digest.update(np.ascontiguousarray(labels).data)
    key = digest.digest()
    if key not in _LAST:
        model = estimate_labels(features, labels, num_classes, seed=seed)
        while len(_LAST) >= _KEPT:
            del _LAST[next(iter(_LAST))]
        _LAST[key] = model
    return _LAST[key]
