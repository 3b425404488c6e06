r"""From backbone features of two domains to one space in which classes are round and directions are comparable.

1. Unit length; each domain is centred on its own mean. The source mean gives every class the same weight.
2. Joint principal directions, both domains with the same weight (randomised range finder).
3. Whitening by the within-class covariance, shrunk half-way to a multiple of the identity: first that of the source, then,
   with a posterior of the target, the mean of both. The target is then also shifted so that its class means agree with
   those of the source on average, since its plain mean is off where its label set is another.
4. Unit length again: classes are compared by cosines.
"""

from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

import numpy as np

__all__ = ["Embedding", "Projection", "project", "unit"]

_CHUNK = 8192
_WIDTH = 256  # largest number of principal directions
_SHRINKAGE = 0.5  # less overfits the within-class covariance of the source, more ignores it
_ENOUGH = 5.0  # confident target samples that a class needs for a mean of its own


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length one; a row of zeros stays zero."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12))


def _chunks(features: np.ndarray) -> Iterator[Tuple[slice, np.ndarray]]:
    for start in range(0, len(features), _CHUNK):
        rows = slice(start, start + _CHUNK)
        yield rows, unit(features[rows].astype(np.float32))


def _map(features: np.ndarray, centre: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return np.concatenate([(x - centre) @ matrix for _, x in _chunks(features)])


@dataclass
class Embedding:
    r"""The map from target features to the unit sphere, and the directions of the K source classes on it."""

    centre: np.ndarray  # subtracted from unit features, (D,)
    matrix: np.ndarray  # (D, d)
    shift: np.ndarray  # subtracted after the matrix, (d,)
    prototypes: np.ndarray  # unit rows, (K, d)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Target features :math:`(N, D)` as unit vectors :math:`(N, d)`; each row depends on itself only."""
        return unit(_map(features, self.centre, self.matrix) - self.shift)


@dataclass
class Projection:
    """Centred coordinates of both domains on their joint principal directions, and the source posterior."""

    source: np.ndarray
    target: np.ndarray
    centre: np.ndarray
    directions: np.ndarray
    labels: np.ndarray

    def whiten(self, posterior: Optional[np.ndarray] = None) -> Embedding:
        """The embedding; the confident samples of a target ``posterior`` (N, K + 1) take part in it."""
        means = (self.labels / np.maximum(self.labels.sum(0), 1e-9)).T @ self.source
        scatter = _scatter(self.source - self.labels @ means, np.ones(len(self.source)))
        shift = np.zeros(self.source.shape[1], dtype=np.float32)
        if posterior is not None:
            sure = np.where(posterior[:, :-1] > 0.5, posterior[:, :-1], 0.0).astype(np.float32)
            mass = sure.sum(0)
            found = mass >= _ENOUGH
            if found.sum() >= 2:  # the shift of one class may be its own, not that of the domain
                own = (sure.T @ self.target) / np.maximum(mass, 1e-9)[:, None]
                # Two imaginary classes without shift: the mean over few classes is unreliable.
                shift = (own - means)[found].sum(0) / np.float32(found.sum() + 2)
                scatter = (scatter + _scatter(self.target - sure @ own, sure.sum(1))) / 2
        size = len(scatter)
        scatter = (1 - _SHRINKAGE) * scatter + _SHRINKAGE * max(np.trace(scatter) / size, 1e-12) * np.eye(size)
        values, vectors = np.linalg.eigh(scatter)
        matrix = (vectors / np.sqrt(values)).astype(np.float32)
        return Embedding(self.centre, self.directions @ matrix, shift @ matrix, unit(means @ matrix))


def _scatter(residual: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray((residual * weight[:, None].astype(np.float32)).T @ residual / max(float(weight.sum()), 1e-9))


def project(source: np.ndarray, labels: np.ndarray, target: np.ndarray, seed: int = 0) -> Projection:
    """Centre both domains and find their joint principal directions; the covariance is never formed."""
    labels = labels.astype(np.float32)
    share = labels / np.maximum(labels.sum(0), 1e-9)
    weight = (share / max(int((labels.sum(0) > 0).sum()), 1)).sum(1)
    pairs: List[Tuple[np.ndarray, np.ndarray]] = []
    for features, w in ((source, weight), (target, np.full(len(target), 1 / len(target)))):
        centre = sum((w[rows].astype(np.float64) @ x for rows, x in _chunks(features)), np.zeros(features.shape[1]))
        pairs.append((features, centre.astype(np.float32)))
    width = max(1, min(_WIDTH, source.shape[1], len(source) + len(target) - 2))
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((source.shape[1], min(source.shape[1], width + 10))).astype(np.float32)
    for _ in range(3):  # subspace iteration
        basis = np.linalg.qr(_covariance_times(pairs, basis))[0]
    small = basis.T @ _covariance_times(pairs, basis)
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    directions = (basis @ vectors[:, np.argsort(-values)[:width]]).astype(np.float32)
    coordinates = [_map(features, centre, directions) for features, centre in pairs]
    return Projection(coordinates[0], coordinates[1], pairs[1][1], directions, labels)


def _covariance_times(pairs: List[Tuple[np.ndarray, np.ndarray]], basis: np.ndarray) -> np.ndarray:
    total = np.zeros(basis.shape)
    for features, centre in pairs:
        for _, x in _chunks(features):
            total += (x - centre).T @ ((x - centre) @ basis) / len(features)
    return total.astype(np.float32)
