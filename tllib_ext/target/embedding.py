r"""From backbone features of two domains to one space in which classes are round and directions are comparable.

1. Unit length; each domain is centred on its own mean. The source mean weighs every class alike, whatever its size.
2. Joint principal directions, both domains weighing alike (randomised range finder, at most ``width`` directions).
3. Whitening by the within-class covariance, shrunk half-way to a multiple of the identity. At first it is that of the
   source. Once a posterior of the target is there, the covariance of the target around its own class means joins in, and
   the target is shifted so that the classes found in it agree with those of the source on average
   (:meth:`Projection.whiten`): the plain mean of the target is off where its label set differs from the source's.
4. Unit length again: classes are compared by cosines.
"""

from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

import numpy as np

__all__ = ["Embedding", "Projection", "project", "unit"]

_CHUNK = 8192
#: the within-class covariance is mixed half and half with the identity: less overfits the source, more loses it.
_SHRINKAGE = 0.5
#: a class needs so many confident target samples to say where its target mean is.
_ENOUGH = 5.0


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length one; a row of zeros stays zero.

    Examples::

        >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _chunks(features: np.ndarray) -> Iterator[Tuple[slice, np.ndarray]]:
    for start in range(0, len(features), _CHUNK):
        rows = slice(start, start + _CHUNK)
        yield rows, unit(features[rows].astype(np.float32))


@dataclass
class Embedding:
    r"""The map from target features to the unit sphere, and the source prototypes on it.

    Args:
        centre (numpy.ndarray): subtracted from unit features, :math:`(D,)`
        matrix (numpy.ndarray): :math:`(D, d)`
        shift (numpy.ndarray): subtracted after the matrix, :math:`(d,)`
        prototypes (numpy.ndarray): unit directions of the K source classes, :math:`(K, d)`
    """

    centre: np.ndarray
    matrix: np.ndarray
    shift: np.ndarray
    prototypes: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Target features :math:`(N, D)` as unit vectors :math:`(N, d)`; each row depends on itself only."""
        out = np.empty((len(features), self.matrix.shape[1]), dtype=np.float32)
        for rows, x in _chunks(features):
            out[rows] = unit((x - self.centre) @ self.matrix - self.shift)
        return out


@dataclass
class Projection:
    """Centred coordinates of both domains on their joint principal directions."""

    source: np.ndarray
    target: np.ndarray
    centre: np.ndarray
    directions: np.ndarray
    labels: np.ndarray

    def means(self) -> np.ndarray:
        """Coordinates of the K source class means; a class without samples stands at the origin."""
        return (self.labels / np.maximum(self.labels.sum(0), 1e-9)).T @ self.source

    def whiten(self, posterior: Optional[np.ndarray] = None) -> Embedding:
        """The embedding; ``posterior`` (N, K + 1) of the target lets its confident samples join in."""
        means = self.means()
        scatter = _scatter(self.source - self.labels @ means, np.ones(len(self.source)))
        shift = np.zeros(self.source.shape[1], dtype=np.float32)
        if posterior is not None:
            sure = np.where(posterior[:, :-1] > 0.5, posterior[:, :-1], 0.0).astype(np.float32)
            mass = sure.sum(0)
            found = mass >= _ENOUGH
            if found.sum() >= 2:  # one class cannot tell a shift of the domain from its own
                own = (sure.T @ self.target) / np.maximum(mass, 1e-9)[:, None]
                # Two imaginary classes without shift: a mean over few classes is not believed in full.
                shift = (own - means)[found].sum(0) / np.float32(found.sum() + 2)
                weight = sure.sum(1)
                scatter = (scatter + _scatter(self.target - sure @ own, weight)) / 2
        size = len(scatter)
        scatter = (1 - _SHRINKAGE) * scatter + _SHRINKAGE * max(np.trace(scatter) / size, 1e-12) * np.eye(size)
        values, vectors = np.linalg.eigh(scatter)
        matrix = (vectors / np.sqrt(values)).astype(np.float32)
        return Embedding(self.centre, self.directions @ matrix, shift @ matrix, unit(means @ matrix))


def _scatter(residual: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return (residual * weight[:, None].astype(np.float32)).T @ residual / max(float(weight.sum()), 1e-9)


def project(source: np.ndarray, labels: np.ndarray, target: np.ndarray, seed: int = 0, width: int = 256) -> Projection:
    r"""Centre both domains and find their joint principal directions.

    Args:
        source (numpy.ndarray): source features
        labels (numpy.ndarray): posterior of the source labels
        target (numpy.ndarray): target features
        seed (int, optional): of the range finder. Default: 0
        width (int, optional): largest number of directions. Default: 256

    Shape:
        - source: :math:`(S, D)`, labels: :math:`(S, K)`, target: :math:`(N, D)`
    """
    labels = labels.astype(np.float32)
    share = labels / np.maximum(labels.sum(0), 1e-9)
    # Classes without samples have no say; the others weigh alike.
    weight = (share / max(int((labels.sum(0) > 0).sum()), 1)).sum(1)
    centres = [_weighted_mean(source, weight), _weighted_mean(target, np.full(len(target), 1 / len(target)))]
    pairs = [(source, centres[0]), (target, centres[1])]
    width = max(1, min(width, source.shape[1], len(source) + len(target) - 2))
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((source.shape[1], min(source.shape[1], width + 10))).astype(np.float32)
    for _ in range(3):  # subspace iteration; the covariance is never formed, memory stays linear
        basis = np.linalg.qr(_covariance_times(pairs, basis))[0]
    small = basis.T @ _covariance_times(pairs, basis)
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    directions = (basis @ vectors[:, np.argsort(-values)[:width]]).astype(np.float32)
    coordinates = []
    for features, centre in pairs:
        out = np.empty((len(features), width), dtype=np.float32)
        for rows, x in _chunks(features):
            out[rows] = (x - centre) @ directions
        coordinates.append(out)
    return Projection(coordinates[0], coordinates[1], centres[1], directions, labels)


def _weighted_mean(features: np.ndarray, weight: np.ndarray) -> np.ndarray:
    total = np.zeros(features.shape[1])
    for rows, x in _chunks(features):
        total += weight[rows].astype(np.float64) @ x
    return total.astype(np.float32)


def _covariance_times(pairs: List[Tuple[np.ndarray, np.ndarray]], basis: np.ndarray) -> np.ndarray:
    total = np.zeros(basis.shape)
    for features, centre in pairs:
        for _, x in _chunks(features):
            x = x - centre
            total += x.T @ (x @ basis) / len(features)
    return total.astype(np.float32)
