r"""Which target samples resemble a known class, and how many of them: cosines averaged over a graph of neighbours.

With :math:`A` the mean over the :data:`NEIGHBOURS` nearest target samples (a sample is its own neighbour) and
:math:`\mu_k` the prototypes, the class of a sample is that of the largest mean of its neighbours' softened cosines, and its
resemblance is :math:`s = A \max_k \cos(A A z, \mu_k)`. A sample of none of the K classes has a best cosine near
:math:`\sigma e_K`: :math:`\sigma` is the spread of the cosines with all other classes, an empirical null, and :math:`e_K` the
mean of the largest of K standard normal numbers. How the resemblance of the known is distributed above this place is not
known where the domains differ: its density is taken to grow with the power 1, 2 or 4 of the distance. Each power gives a share of
unknown by EM; their mean is evidence under the prior on the share. Its error is their range and the ambiguity of their
posteriors. Last, the share moves, within half of the remaining error, to the border that parts the samples best.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Tuple, Union

import numpy as np
from scipy.special import ndtr, softmax

from tllib_ext.errors import UserError
from tllib_ext.target.embedding import unit

__all__ = ["Graph", "Prior", "Resemblance", "best_border", "expected_maximum", "prior_on_share", "resemblance", "share_by_power"]

NEIGHBOURS = 7
TEMPERATURE = 0.1  # that softens cosines to labels
POWERS = (1.0, 2.0, 4.0)
AMBIGUITY = 1.5  # error of the evidence, by the mean of min(p, 1 - p), beside the range of the powers
MOST = 0.95  # share of unknown above which the evidence does not count
_ROUNDS, _CHUNK = 60, 1024


@dataclass(frozen=True)
class Prior:
    """What is known of the share of unknown before the target is seen; a standard deviation of zero means: told."""

    mean: float = 1 / 3
    std: float = 0.25


#: what a person may say in words.
WORDS = {"few": Prior(0.1, 0.1), "some": Prior(1 / 3, 0.1), "many": Prior(0.6, 0.15)}


def prior_on_share(told: Union[None, str, float]) -> Prior:
    """The prior that ``few``, ``some``, ``many``, a number from 0 to 1 (then the share is told) or None means.

    Examples::

        >>> prior_on_share("few"), prior_on_share("0.3")
        (Prior(mean=0.1, std=0.1), Prior(mean=0.3, std=0.0))
    """
    if told is None or told in WORDS:
        return Prior() if told is None else WORDS[str(told)]
    try:
        share = float(told)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UserError(f"unknown share {told!r}: expected a number from 0 to 1, {', '.join(WORDS)}, or none (estimated)")
    return Prior(share, 0.0)


@lru_cache(maxsize=None)
def expected_maximum(number: int) -> float:
    """Mean of the largest of ``number`` independent standard normal numbers.

    Examples::

        >>> [round(expected_maximum(k), 3) for k in (1, 2, 10)]
        [0.0, 0.564, 1.539]
    """
    x = np.linspace(-8, 10, 6001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return float((x * number * density * ndtr(x) ** (number - 1)).sum() * (x[1] - x[0]))


class Graph:
    """The nearest rows of each of N unit rows; calling it averages values (N,) or (N, C) over them."""

    def __init__(self, z: np.ndarray, neighbours: int = NEIGHBOURS):
        number = min(neighbours, len(z))
        self.index = np.empty((len(z), number), dtype=np.int64)
        for start in range(0, len(z), _CHUNK):
            near = z[start : start + _CHUNK] @ z.T
            self.index[start : start + _CHUNK] = np.argpartition(-near, number - 1, axis=1)[:, :number]

    def __call__(self, values: np.ndarray) -> np.ndarray:
        total = np.zeros(values.shape, dtype=values.dtype)
        for column in self.index.T:
            total += values[column]
        return total / self.index.shape[1]


@dataclass
class Resemblance:
    """Of N target samples to the K classes."""

    nearest: np.ndarray  # class, (N,)
    value: np.ndarray  # resemblance s, (N,)
    spread: float  # of the cosines with other classes
    null: float  # mean resemblance of a sample of none of the classes
    shares: Tuple[float, ...]  # of unknown, by each power
    share: float  # by these and the prior
    error: float  # its standard deviation, 0 where it is told or there is no evidence
    evidence_error: float  # that of the evidence alone
    weak: bool  # neighbours are not of one class, so there is no evidence

    def labels(self, num_classes: int) -> np.ndarray:
        """The nearest class, or K for the ``share`` of the samples with the lowest resemblance, (N,)."""
        labels = self.nearest.copy()
        labels[np.argsort(self.value, kind="stable")[: int(round(self.share * len(self.value)))]] = num_classes
        return labels


def share_by_power(value: np.ndarray, null: float, spread: float, power: float) -> Tuple[float, float]:
    r"""Share of unknown by EM, and the mean of :math:`\min(p, 1 - p)` of its posteriors: normal around the null, against a
    density of the known that grows with a power above it."""
    length = max(float(value.max()) - null, spread)
    x = np.clip((value - null) / length, 0, 1)
    unknown = np.exp(-((np.maximum(value - null, 0) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
    known = ((power + 1) * x**power + 0.02) / length  # the constant: a known sample may lie anywhere
    share = 0.5
    for _ in range(_ROUNDS):
        posterior = share * unknown / (share * unknown + (1 - share) * known)
        share = float(posterior.mean())
    return share, float(np.minimum(posterior, 1 - posterior).mean())


def best_border(value: np.ndarray, low: float, high: float) -> float:
    """Otsu's rule: the share between ``low`` and ``high`` with the largest variance between those below and above.

    Examples::

        >>> best_border(np.array([0.1, 0.2, 0.3, 0.8, 0.9]), 0.2, 0.8)
        0.6
    """
    ordered, n = np.sort(value), len(value)
    first, last = (int(np.clip(round(share * n), 0, n)) for share in (low, high))
    below = np.arange(max(first, 1), min(last, n - 1) + 1)
    if not len(below):
        return float(np.clip((low + high) / 2, 0, 1))
    total = np.cumsum(ordered)
    gap = (total[-1] - total[below - 1]) / (n - below) - total[below - 1] / below
    return float(below[(below * (n - below) * gap**2).argmax()] / n)


def resemblance(z: np.ndarray, prototypes: np.ndarray, prior: Prior = Prior()) -> Resemblance:  # noqa: B008
    r"""Nearest class and resemblance of unit rows :math:`(N, d)`, and the share of those that resemble no class.

    Args:
        z (numpy.ndarray): target samples, unit rows
        prototypes (numpy.ndarray): of the classes, unit rows :math:`(K, d)`
        prior (Prior): on the share
    """
    average, k = Graph(z), len(prototypes)
    nearest = average(softmax(z @ prototypes.T / np.float32(TEMPERATURE), axis=1)).argmax(1)
    cosines = unit(average(average(z))) @ prototypes.T
    others = np.sort(cosines, axis=1)[:, :-1] if k > 1 else cosines
    spread, value = max(float(others.std()), 1e-3), average(cosines.max(1)).astype(np.float64)
    null = spread * expected_maximum(k)
    shares, ambiguous = zip(*(share_by_power(value, null, spread, power) for power in POWERS))
    share, error, alone = prior.mean, 0.0, 1.0
    weak = bool(np.mean(shares) > MOST)
    if weak:  # that nothing is known contradicts the task: neighbours are not of one class, the sample itself decides
        nearest, value = (z @ prototypes.T).argmax(1), (z @ prototypes.T).max(1).astype(np.float64)
    elif prior.std > 0:
        alone = min(max(math.hypot(AMBIGUITY * max(ambiguous), np.ptp(shares)), 1e-3), 1.0)
        error = 1 / math.sqrt(1 / alone**2 + 1 / prior.std**2)
        share = (float(np.mean(shares)) / alone**2 + prior.mean / prior.std**2) * error**2
        share = best_border(value, share - error / 2, share + error / 2)
    return Resemblance(nearest, value, spread, null, shares, share, error, alone, weak)
