r"""The feature space of the label model: principal components of unit features, partly whitened for prototypes."""

from typing import Iterator, NamedTuple, Tuple

import numpy as np
from sklearn.utils.extmath import randomized_svd

__all__ = ["Axes", "principal_axes", "evenly_spaced", "chunks"]

_CHUNK = 8192
_WIDTH, _PROTOTYPE_WIDTH = 256, 128  # directions, and those of prototypes; at least 2K
_SAMPLE = 3000  # rows that the directions are computed from


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def chunks(size: int, rows: int = _CHUNK) -> Iterator[slice]:
    """Slices that cover ``range(size)``."""
    for start in range(0, size, rows):
        yield slice(start, start + rows)


def _unit_chunks(features: np.ndarray) -> Iterator[Tuple[slice, np.ndarray]]:
    for rows in chunks(len(features)):
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


class Axes(NamedTuple):
    """Leading principal directions of centred unit features: mean, (d, D) directions, singular values, and how many of
    the directions the prototypes use."""

    mean: np.ndarray
    directions: np.ndarray
    scale: np.ndarray
    prototype_width: int

    def project(self, features: np.ndarray) -> np.ndarray:
        """Coordinates, :math:`(N, d)` float32."""
        out = np.empty((len(features), len(self.scale)), dtype=np.float32)
        for rows, x in _unit_chunks(features):
            out[rows] = (x - self.mean) @ self.directions.T
        return out

    def rescale(self, coordinates: np.ndarray, rank: int) -> np.ndarray:
        r"""Unit vectors in which classes are round: each coordinate is divided by :math:`\sqrt{s_j^2 + s_m^2}`.

        The m (``rank``) leading directions are thus whitened and the others fade out: no single strong nuisance
        direction decides the cosine, and no noise direction is amplified.
        """
        scale = self.scale[: self.prototype_width]
        floor = max(float(scale[min(rank, len(scale)) - 1]), 1e-6)
        return _unit(coordinates[:, : len(scale)] / np.sqrt(scale**2 + floor**2).astype(np.float32))


def principal_axes(features: np.ndarray, num_classes: int, seed: int = 0) -> Axes:
    r"""Principal directions of centred unit features.

    Args:
        features (numpy.ndarray): :math:`f`
        num_classes (int): :math:`K`
        seed (int, optional): of the randomised SVD. Default: 0

    Shape:
        - features: :math:`(N, D)`
    """
    n, dim = features.shape
    rng = np.random.default_rng(seed)
    mean, key = np.zeros(dim), np.zeros(n)
    probe = rng.standard_normal(dim)
    for rows, x in _unit_chunks(features):
        mean += x.sum(0, dtype=np.float64)
        key[rows] = x @ probe
    mean = (mean / n).astype(np.float32)
    # Rows are chosen by their order along a random direction: the choice does not depend on the order of the data set.
    sample = _unit(features[np.argsort(key, kind="stable")[evenly_spaced(n, _SAMPLE)]].astype(np.float32)) - mean
    width = max(1, min(max(_WIDTH, 2 * num_classes), len(sample) - 1, dim))
    _, scale, directions = randomized_svd(sample, width, random_state=seed)
    return Axes(mean, directions, scale, max(_PROTOTYPE_WIDTH, 2 * num_classes))
