r"""Which of two groups does the best cosine of a sample belong to: "has a class of its own here" or "has none"?

Let :math:`s_i = \max_k \cos(w_i, \mu_k)`, where :math:`w_i` is the mean direction of the neighbourhood of sample i. All
other cosines of all samples are cosines with classes that the sample is *not* of. Their spread :math:`\sigma_0` is an
empirical null, in the geometry of this very pair of domains: a sample without any class among the K has a best cosine
near :math:`e_K \sigma_0`, with :math:`e_K` the mean of the largest of K standard normal numbers. Two normal
distributions are fitted to the :math:`s_i` by EM: the one of the unknown is held near that place by a conjugate prior of
given strength, the one of the known is free. Without unknown samples the first stays where the prior has put it and gets
no weight, which is how partial and closed label sets are recognised; no threshold is involved.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, List, Optional, Tuple

import numpy as np
from scipy.special import expit, ndtr

__all__ = ["TwoGroups", "expected_maximum", "fit_two_groups", "local_means", "resultant_start", "soft_labels", "SETTINGS"]

#: inflation of the null (classes are related, not independent) and strength of its prior; posteriors are averaged over these.
SETTINGS: Tuple[Tuple[float, float], ...] = tuple((i, s) for i in (1.0, 1.25) for s in (0.05, 0.2, 1.0))
_ROUNDS = 60


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


def _log_density(x: Any, mean: float, std: float) -> Any:
    """Of the normal distribution, up to a constant."""
    return -0.5 * ((x - mean) / std) ** 2 - math.log(std)


def local_means(z: np.ndarray, neighbours: int = 15, anchors: int = 5000, chunk: int = 1024) -> np.ndarray:
    r"""Unit mean of the ``neighbours`` nearest rows of each row (itself among them).

    Beyond ``anchors`` rows, neighbours are looked for among so many rows, evenly spread: time and memory stay linear.

    Shape:
        - z: :math:`(N, d)` unit rows; output: :math:`(N, d)`
    """
    pool = z if len(z) <= anchors else z[((np.arange(anchors) + 0.5) * len(z) / anchors).astype(np.int64)]
    number = min(neighbours, len(pool))
    out = np.empty_like(z)
    for start in range(0, len(z), chunk):
        near = z[start : start + chunk] @ pool.T
        index = np.argpartition(-near, number - 1, axis=1)[:, :number] if number < len(pool) else None
        mean = pool[index].mean(1) if index is not None else np.repeat(pool.mean(0)[None], len(near), 0)
        out[start : start + chunk] = mean
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)


def border(a: float) -> float:
    """Where a cosine is as probable for directions around a prototype with mean cosine ``a`` as for none: about a / 2."""
    return float(a + (1 - a * a) * np.log1p(-a * a) / (2 * a))


def resultant_start(best: np.ndarray) -> float:
    r"""A first guess of the mean cosine a of the known, by the fixed point of "a is the mean of those above :math:`t(a)`".

    If directions of the known are spread around :math:`a \mu_k` and those of the unknown around the origin, both round,
    the border is :math:`t(a) = a + (1 - a^2) \log(1 - a^2) / (2 a)` in any dimension: about a / 2 for small a.
    """
    a = float(np.quantile(best, 0.9))
    for _ in range(100):
        a = min(max(a, 0.02), 0.98)
        above = best > border(a)
        new = float(best[above].mean()) if above.any() else float(best.max())
        if abs(new - a) < 1e-5:
            break
        a = new
    return min(max(a, 0.02), 0.98)


@dataclass
class TwoGroups:
    """Means, standard deviations and share of the two groups, and the posterior of *known* of every sample."""

    known: np.ndarray
    null: float
    spread: float
    unknown_mean: float
    unknown_std: float
    known_mean: float
    known_std: float
    share: float

    @property
    def separation(self) -> float:
        """Distance of the two means in units of their mean standard deviation."""
        return (self.known_mean - self.unknown_mean) / max((self.known_std + self.unknown_std) / 2, 1e-9)


def fit_two_groups(cosines: np.ndarray, inflation: float = 1.0, strength: float = 0.2) -> TwoGroups:
    r"""EM for the two normal distributions of the best cosine.

    Args:
        cosines (numpy.ndarray): of samples with the K prototypes, :math:`(N, K)`
        inflation (float, optional): factor on the place of the null
        strength (float, optional): imaginary samples at the null, as a share of N
    """
    n, k = cosines.shape
    best = cosines.max(1).astype(np.float64)
    rest = np.sort(cosines, axis=1)[:, :-1]
    spread = max(float(rest.std()) if k > 1 else float(best.std()), 1e-3)
    # One class only: its cosine is its own maximum, and the null is at right angles.
    null = inflation * spread * expected_maximum(k)
    start = resultant_start(best)
    mean_u, std_u, share = null, spread, 0.5
    above = best[best > border(start)]
    mean_k, std_k = max(start, null + 2 * spread), max(float(above.std()) if len(above) > 2 else 0.0, spread)
    prior_u, prior_k = strength * n, 0.01 * n
    known = np.full(n, 0.5)
    for _ in range(_ROUNDS):
        odds = _log_density(best, mean_k, std_k) - _log_density(best, mean_u, std_u)
        # A cosine below the mean of the unknown is no better sign of a class than that mean is.
        least = _log_density(mean_u, mean_k, std_k) - _log_density(mean_u, mean_u, std_u)
        odds = np.where(best <= mean_u, np.minimum(odds, least), odds)
        known = expit(odds + np.log(share) - np.log(1 - share))
        sum_k, sum_u = known.sum(), n - known.sum()
        mean_u = (((1 - known) * best).sum() + prior_u * null) / (sum_u + prior_u)
        std_u = np.sqrt((((1 - known) * (best - mean_u) ** 2).sum() + prior_u * spread**2) / (sum_u + prior_u))
        mean_k = ((known * best).sum() + prior_k * start) / (sum_k + prior_k)
        std_k = np.sqrt(((known * (best - mean_k) ** 2).sum() + prior_k * spread**2) / (sum_k + prior_k))
        share = float(np.clip(sum_k / n, 0.01, 0.99))
    return TwoGroups(known, null, spread, float(mean_u), float(std_u), float(mean_k), float(std_k), 1 - share)


def soft_labels(
    z: np.ndarray, prototypes: np.ndarray, neighbours: int = 15, groups: Optional[List[TwoGroups]] = None
) -> np.ndarray:
    """Posterior (N, K + 1): nearest prototype of the local mean or unknown, averaged over :data:`SETTINGS`.

    Args:
        groups (list, optional): filled with the :class:`TwoGroups` of every setting
    """
    cosines = local_means(z, neighbours) @ prototypes.T
    fits = [fit_two_groups(cosines, *setting) for setting in SETTINGS]
    if groups is not None:
        groups.extend(fits)
    known = np.mean([fit.known for fit in fits], axis=0)
    out = np.zeros((len(z), len(prototypes) + 1))
    out[np.arange(len(z)), cosines.argmax(1)] = known
    out[:, -1] = 1 - known
    return out
