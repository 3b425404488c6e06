r"""Answers of a person about some target samples: which samples to ask about, and a posterior corrected by the answers.

*Which samples.* Let :math:`z_i` be the mean direction of the neighbourhood of sample i. Of k-means clusters of the
:math:`z_i`, asked is the sample nearest to each centre; clusters that hold a sample asked before are passed over.

*The correction.* With :math:`p` the posterior over K classes and unknown before the answers, A the answered samples and
:math:`Y_A` their answers, one-hot, a Gaussian process on the residual gives

.. math::
    X(z, p) = p + k(z, z_A) \, (k_{AA} + \sigma^2 I)^{-1} (Y_A - p_A), \qquad k(z, z') = \exp((\cos(z, z') - 1) / 0.6)

with negative parts cut and rows scaled to one. The mean of X over :data:`NOISES` (:math:`\sigma^2`) and :data:`SHRINKAGE`
(p is mixed with an even posterior: a wrong p is trusted less) is taken with weights in proportion to the likelihood of
every answer by the other ones, which has a closed form: so wrong answers count less where the others contradict them.
"""

from dataclasses import dataclass
from itertools import product
from typing import List, Optional, Sequence

import numpy as np
from scipy.special import softmax
from sklearn.cluster import KMeans

from tllib_ext.errors import UserError
from tllib_ext.target.embedding import unit

__all__ = ["Correction", "Neighbourhoods", "choose"]

WIDTH = 0.6  # of the kernel
NOISES, SHRINKAGE = (0.1, 0.3, 1.0, 3.0), (0.0, 0.5)  # variance of an answer, and share of an even posterior, averaged over
SURPRISE = 0.2  # share of answers that the likelihood takes to be drawn at random: one of them decides about no weight
#: an answer contradicts its neighbourhood if the others give it less than the first, and another label more than the second
DOUBT = (0.2, 0.5)
#: two neighbourhoods are averaged: a small one, and one of a quarter of a class, up to the second number
NEIGHBOURS = (4, 15)
_ANCHORS, _CLUSTERED, _CHUNK = 5000, 3000, 1024  # rows that are neighbours, and that k-means sees; time stays linear


@dataclass
class Neighbourhoods:
    r"""Unit means of the nearest target samples of unit rows; a row's mean depends on it and on the target only.

    Args:
        target (numpy.ndarray): embedded target samples, unit rows :math:`(N, d)`
        num_classes (int): K, for the size of a neighbourhood

    Examples::

        >>> z = unit(np.repeat(np.eye(3), 8, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((24, 3)))
        >>> float((Neighbourhoods(z, 2)(z) * np.repeat(np.eye(3), 8, axis=0)).sum(1).min().round(1))
        1.0
    """

    target: np.ndarray
    num_classes: int

    def __post_init__(self) -> None:
        n = len(self.target)
        rows = slice(None) if n <= _ANCHORS else ((np.arange(_ANCHORS) + 0.5) * n / _ANCHORS).astype(np.int64)
        self.pool = self.target[rows].astype(np.float32)
        larger = int(np.clip(len(self.pool) // (4 * (self.num_classes + 1)), *NEIGHBOURS))
        self.sizes = tuple(min(size, len(self.pool)) for size in (NEIGHBOURS[0], larger))

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Of unit rows :math:`(M, d)`, unit rows :math:`(M, d)`."""
        out = np.empty((len(z), self.pool.shape[1]), dtype=np.float32)
        for start in range(0, len(z), _CHUNK):
            near = z[start : start + _CHUNK].astype(np.float32) @ self.pool.T
            means = [self.pool[np.argpartition(-near, size - 1, axis=1)[:, :size]].mean(1) for size in self.sizes]
            out[start : start + _CHUNK] = unit(unit(means[0]) + unit(means[1]))
        return out


def choose(z: np.ndarray, number: int, asked: Sequence[int] = (), seed: int = 0) -> np.ndarray:
    r"""The samples to ask about, of the largest cluster first.

    Args:
        z (numpy.ndarray): of :class:`Neighbourhoods`, :math:`(N, d)`
        number (int): of samples; fewer where fewer are left
        asked (sequence of int): samples that were asked about before
        seed (int): of k-means

    Examples::

        >>> z = unit(np.repeat(np.eye(3), (8, 6, 4), axis=0) + 0.1 * np.random.default_rng(0).standard_normal((18, 3)))
        >>> first = choose(z, 2)
        >>> sorted(np.digitize(first, (8, 14)).tolist()), np.digitize(choose(z, 1, first), (8, 14)).tolist()
        ([0, 1], [2])
    """
    free = np.ones(len(z), dtype=bool)
    free[np.asarray(asked, dtype=np.int64)] = False
    number = min(number, int(free.sum()))
    if number < 1:
        return np.empty(0, dtype=np.int64)
    sample = z if len(z) <= _CLUSTERED else z[((np.arange(_CLUSTERED) + 0.5) * len(z) / _CLUSTERED).astype(np.int64)]
    count = min(number + len(asked), len(np.unique(sample, axis=0)))
    centres = KMeans(count, n_init=4, random_state=seed).fit(sample).cluster_centers_.astype(z.dtype)
    distance = (centres**2).sum(1) - 2 * z @ centres.T
    member = distance.argmin(1)
    taken = np.bincount(member[~free], minlength=count) > 0
    order = np.lexsort((-np.bincount(member, minlength=count), taken))
    chosen: List[int] = []
    while len(chosen) < number:
        for cluster in order[: number - len(chosen)]:
            chosen.append(int(np.where(free, distance[:, cluster], np.inf).argmin()))
            free[chosen[-1]] = False
    return np.array(chosen, dtype=np.int64)


class Correction:
    r"""The posterior corrected by answers.

    Args:
        z (numpy.ndarray): of :class:`Neighbourhoods`, of the answered samples, :math:`(A, d)`
        base (numpy.ndarray): their posterior before the answers, :math:`(A, K + 1)`
        labels (numpy.ndarray): the answers, K for unknown, :math:`(A,)`
        confirmed (numpy.ndarray, optional): whether an answer was given twice; its noise is the smallest, :math:`(A,)`
        trust (bool): also use doubtful answers that are not confirmed. Default: False

    Attributes:
        doubtful (numpy.ndarray): answers that contradict their neighbourhood and are not confirmed, :math:`(A,)` bool
        noise (float): mean of the noise, by the weights

    Examples::

        >>> z, base = np.eye(4)[[0, 0, 1, 1]], np.full((4, 3), 1 / 3)
        >>> correct = Correction(z[[0, 2]], base[[0, 2]], np.array([2, 0]))
        >>> correct(z, base).argmax(1)
        array([2, 2, 0, 0])
    """

    def __init__(
        self, z: np.ndarray, base: np.ndarray, labels: np.ndarray, confirmed: Optional[np.ndarray] = None, trust: bool = False
    ):
        answers, count = np.asarray(labels), base.shape[1]
        if len(z) != len(answers) or len(base) != len(answers):
            raise UserError(f"{len(answers)} answers for {len(z)} samples: expected one answer per sample")
        if len(answers) and not (0 <= answers.min() and answers.max() < count):
            raise UserError(f"answers are {answers.min()} to {answers.max()}: expected 0 to {count - 1}, which is unknown")
        sure = np.zeros(len(answers), dtype=bool) if confirmed is None else np.asarray(confirmed, dtype=bool)
        self.settings = [*product(SHRINKAGE, NOISES)]
        self.doubtful = np.zeros(len(answers), dtype=bool)
        self._fit(z, base, np.eye(count)[answers], sure)
        if len(answers):
            given = np.eye(count, dtype=bool)[answers]
            mean = np.tensordot(self.weights, self.others, 1)
            doubted = (mean[given] < DOUBT[0]) & (np.where(given, 0, mean).max(1) > DOUBT[1])
            self.doubtful = doubted & ~sure
        if self.doubtful.any() and not trust:
            kept = ~self.doubtful
            self._fit(z[kept], base[kept], np.eye(count)[answers[kept]], sure[kept])

    def _fit(self, z: np.ndarray, base: np.ndarray, onehot: np.ndarray, sure: np.ndarray) -> None:
        """Coefficients of every setting, its posterior of every answer by the others, and its weight."""
        self.z, kernel = np.asarray(z, dtype=np.float64), _kernel(z, z)
        coefficients, others = [], []
        for shrinkage, noise in self.settings:
            inverse = np.linalg.inv(kernel + np.diag(np.where(sure, NOISES[0], noise)))
            weights = inverse @ (onehot - _shrunk(base, shrinkage))
            coefficients.append(weights)
            others.append(_posterior(onehot - weights / np.diag(inverse)[:, None]))
        self.coefficients, self.others = np.array(coefficients), np.array(others)
        likelihood = (1 - SURPRISE) * (self.others * onehot).sum(2) + SURPRISE / base.shape[1]
        self.weights = softmax(np.log(likelihood).sum(1))
        self.noise = float(self.weights @ [noise for _, noise in self.settings])

    def __call__(self, z: np.ndarray, base: np.ndarray) -> np.ndarray:
        """The corrected posterior of any samples, from their z :math:`(N, d)` and posterior :math:`(N, K + 1)`."""
        if not len(self.z):
            return np.asarray(base, dtype=np.float64)
        near = _kernel(z, self.z)
        out = np.zeros(base.shape)
        for weight, (shrinkage, _), coefficients in zip(self.weights, self.settings, self.coefficients):
            out += weight * _posterior(_shrunk(base, shrinkage) + near @ coefficients)
        return out


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp((np.asarray(a, dtype=np.float64) @ np.asarray(b, dtype=np.float64).T - 1) / WIDTH))


def _shrunk(base: np.ndarray, share: float) -> np.ndarray:
    """The posterior mixed with an even one, of which unknown has a half."""
    classes = base.shape[1] - 1
    return (1 - share) * base + share * np.append(np.full(classes, 0.5 / classes), 0.5)


def _posterior(x: np.ndarray) -> np.ndarray:
    """Negative parts cut, rows scaled to one."""
    x = np.maximum(x, 0) + 1e-12
    return np.asarray(x / x.sum(1, keepdims=True))
