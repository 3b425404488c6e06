r"""The feature space of the label model: partly whitened principal components of unit length."""

from typing import Iterator, Tuple

import numpy as np
from sklearn.utils.extmath import randomized_svd

__all__ = ["embed", "rescale", "evenly_spaced"]

_CHUNK = 8192


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _chunks(features: np.ndarray) -> Iterator[Tuple[slice, np.ndarray]]:
    for start in range(0, len(features), _CHUNK):
        rows = slice(start, start + _CHUNK)
        yield rows, _unit(features[rows].astype(np.float32))


def evenly_spaced(size: int, limit: int) -> np.ndarray:
    """At most ``limit`` positions, evenly spaced over ``range(size)``.

    Examples::

        >>> evenly_spaced(10, 4).tolist()
        [1, 3, 6, 8]
    """
    if size <= limit:
        return np.arange(size)
    return ((np.arange(limit) + 0.5) * size / limit).astype(np.int64)


def embed(
    features: np.ndarray, num_classes: int, seed: int = 0, width: int = 128, limit: int = 3000
) -> Tuple[np.ndarray, np.ndarray]:
    r"""Coordinates of centred unit features on their leading principal directions, and the singular values.

    Args:
        features (numpy.ndarray): :math:`f`
        num_classes (int): :math:`K`
        seed (int, optional): of the randomised SVD. Default: 0
        width (int, optional): number of directions (at least 2K are taken). Default: 128
        limit (int, optional): number of rows the directions are computed from. Default: 3000

    Shape:
        - features: :math:`(N, D)`
        - Outputs: :math:`(N, d)` float32 and :math:`(d,)`
    """
    n, dim = features.shape
    rng = np.random.default_rng(seed)
    mean, key = np.zeros(dim), np.zeros(n)
    probe = rng.standard_normal(dim)
    for rows, x in _chunks(features):
        mean += x.sum(0, dtype=np.float64)
        key[rows] = x @ probe
    mean = (mean / n).astype(np.float32)
    # Rows are chosen by their order along a random direction: the choice does not depend on the order of the data set.
    sample = _unit(features[np.argsort(key, kind="stable")[evenly_spaced(n, limit)]].astype(np.float32)) - mean
    width = max(1, min(max(width, 2 * num_classes), len(sample) - 1, dim))
    _, scale, directions = randomized_svd(sample, width, random_state=seed)
    out = np.empty((n, len(scale)), dtype=np.float32)
    for rows, x in _chunks(features):
        out[rows] = (x - mean) @ directions.T
    return out, scale


def rescale(coordinates: np.ndarray, scale: np.ndarray, rank: int) -> np.ndarray:
    r"""Unit vectors in which classes are round: each coordinate is divided by :math:`\sqrt{s_j^2 + s_m^2}`.

    The m (``rank``) leading directions are thus whitened and the others fade out: no single strong nuisance direction
    decides the cosine, and no noise direction is amplified.
    """
    floor = max(float(scale[min(rank, len(scale)) - 1]), 1e-6)
    return _unit(coordinates / np.sqrt(scale**2 + floor**2).astype(np.float32))
