r"""The discriminative view of each sample: what the other samples' labels predict for it, without a model of noise.

Prototypes describe a class by its mean. Where features overlap, a linear classifier predicts labels better, and ridge
regression of the one-hot labels has leave-one-out predictions in closed form: with the hat matrix H,
:math:`\hat y_{-i} = (\hat y_i - H_{ii} y_i) / (1 - H_{ii})`. Softmax with a temperature makes probabilities of its scores,
and a log-linear pool joins them with those of the prototypes. Penalty and temperatures maximise the leave-one-out
likelihood of the given labels.
"""

from typing import NamedTuple, Tuple

import numpy as np

from tllib_ext.labels.em import softmax

__all__ = ["Ridge", "Views", "best_temperature", "fit_views", "tune_views"]

_PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # times the total variance
_TEMPERATURES = np.geomspace(0.01, 1.0, 24)
_POOLS = np.array([1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.4])


def log_likelihood(p: np.ndarray, y: np.ndarray) -> float:
    """Of the labels under the probabilities p."""
    return float(np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).sum(dtype=np.float64))


def best_temperature(scores: np.ndarray, y: np.ndarray, grid: np.ndarray = _TEMPERATURES) -> Tuple[float, float]:
    """The largest log-likelihood of the labels, and the temperature at which it is reached."""
    return max((log_likelihood(softmax(scores, t), y), float(t)) for t in grid)


def label_sums(x: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """Sum of the rows of each label, :math:`(K, d)`."""
    sums = np.zeros((classes, x.shape[1]), dtype=np.float64)
    order = np.argsort(y, kind="stable")
    present, first = np.unique(y[order], return_index=True)
    sums[present] = np.add.reduceat(x[order], first, axis=0, dtype=np.float64)
    return sums


class Ridge:
    r"""Ridge regression of one-hot labels; penalty and temperature maximise the leave-one-out likelihood of the labels.

    Args:
        z (numpy.ndarray): features
        y (numpy.ndarray): observed labels, 0..K-1
        classes (int): :math:`K`

    Shape:
        - z: :math:`(N, d)`
    """

    def __init__(self, z: np.ndarray, y: np.ndarray, classes: int) -> None:
        mean = z.mean(0)
        centred = z - mean
        self._solve(mean, centred.T @ centred, label_sums(centred, y, classes), np.bincount(y, minlength=classes))
        self._tune(z, y)

    @classmethod
    def from_moments(
        cls, mean: np.ndarray, gram: np.ndarray, sums: np.ndarray, counts: np.ndarray, z: np.ndarray, y: np.ndarray
    ) -> "Ridge":
        """From the moments of many samples, about ``mean``; penalty and temperature from some of them, ``z`` and ``y``."""
        ridge = cls.__new__(cls)
        ridge._solve(mean, gram, sums, counts)
        ridge._tune(z, y)
        return ridge

    def _solve(self, mean: np.ndarray, gram: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> None:
        self.mean, self._size = mean, int(counts.sum())
        values, axes = np.linalg.eigh(gram.astype(np.float64))
        self._values, self._axes = np.maximum(values, 0), axes.astype(np.float32)
        self._targets, self.share = self._axes.T @ sums.T.astype(np.float32), (counts / counts.sum()).astype(np.float32)

    def _tune(self, z: np.ndarray, y: np.ndarray) -> None:
        found = []
        for penalty in _PENALTIES:
            self._penalise(penalty)
            found.append((*best_temperature(self.left_out(z, y), y), penalty))
        self.log_likelihood, self.temperature, self.penalty = max(found)
        self._penalise(self.penalty)

    def _penalise(self, penalty: float) -> None:
        self._inverse = (1 / (self._values + max(penalty * self._values.sum(), 1e-9))).astype(np.float32)
        self._weights = self._inverse[:, None] * self._targets

    def left_out(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Scores of samples of the fit, each predicted by the others, :math:`(N, K)`."""
        rotated = (z - self.mean) @ self._axes
        own = np.minimum((rotated * rotated) @ self._inverse + 1 / self._size, 0.999).astype(np.float32)
        scores = rotated @ self._weights + self.share
        scores[np.arange(len(y)), y] -= own
        return scores / (1 - own[:, None])

    @staticmethod
    def held_out(z: np.ndarray, y: np.ndarray, classes: int, fold: np.ndarray) -> float:
        """Log-likelihood of the labels of each fold under the fit to the others."""
        total = 0.0
        for k in range(fold.max() + 1):
            seen = fold != k
            model = Ridge(z[seen], y[seen], classes)
            scores = (z[~seen] - model.mean) @ model._axes @ model._weights + model.share
            total += log_likelihood(softmax(scores, model.temperature), y[~seen])
        return total


class Views(NamedTuple):
    """Prototypes of the given labels and ridge regression, and the temperatures of both and of their pool."""

    sums: np.ndarray
    ridge: Ridge
    temperature: float
    pool: float

    def predict(self, g: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Probabilities of the classes for samples of the fit, each predicted by the others, :math:`(N, K)`."""
        return softmax(self._joined(g, z, y), self.pool)

    def _joined(self, g: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        first = softmax(prototype_scores(self.sums, g, y), self.temperature)
        second = softmax(self.ridge.left_out(z, y), self.ridge.temperature)
        return np.log(np.maximum(first, 1e-12)) + np.log(np.maximum(second, 1e-12))


def prototype_scores(sums: np.ndarray, g: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cosines to the sums of the given labels; a sample is taken out of its own."""
    norm = np.linalg.norm(sums, axis=1)
    scores = g @ (sums / np.maximum(norm, 1e-6)[:, None]).T.astype(np.float32)
    rows, own = np.arange(len(y)), scores[np.arange(len(y)), y] * norm[y].astype(np.float32)
    square = np.any(g, axis=1).astype(np.float32)  # 1 for a unit vector, 0 where features are constant
    left = np.maximum(norm[y] ** 2 - 2 * own + square, 1e-6)
    scores[rows, y] = (own - square) / np.sqrt(left)
    return scores


def fit_views(g: np.ndarray, z: np.ndarray, y: np.ndarray, classes: int) -> Views:
    """Fit both views and the temperatures."""
    return tune_views(label_sums(g, y, classes), Ridge(z, y, classes), g, z, y)


def tune_views(sums: np.ndarray, ridge: Ridge, g: np.ndarray, z: np.ndarray, y: np.ndarray) -> Views:
    """Both views with the temperatures that fit the given samples best."""
    views = Views(sums, ridge, best_temperature(prototype_scores(sums, g, y), y)[1], 1.0)
    return views._replace(pool=best_temperature(views._joined(g, z, y), y, _POOLS)[1])
