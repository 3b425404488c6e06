r"""Which of two groups does the best cosine of a sample belong to: "has a class of its own here" or "has none"?

Let :math:`s_i = \max_k \cos(w_i, \mu_k)`, with :math:`w_i` the mean direction of the neighbourhood of sample i. All other
cosines are with classes that a sample is *not* of. Their spread :math:`\sigma_0` is an empirical null: a sample of none of
the K classes has a best cosine near :math:`e_K \sigma_0`, with :math:`e_K` the mean of the largest of K standard normal
numbers. Two normal distributions are fitted to the :math:`s_i` by EM; a conjugate prior holds the one of the unknown near
that place. Without unknown samples it stays there and gets no weight: so partial and closed label sets are recognised.
Where the groups overlap, or doubtful source labels blur the prototypes, fits join in whose known samples have a mean and a share
per class, since some classes then lie much farther from their prototype than others.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import List, Tuple, Union

import numpy as np
from scipy.special import expit, ndtr

from tllib_ext.target.embedding import unit

__all__ = ["TwoGroups", "expected_maximum", "fit_two_groups", "local_means", "null_spread", "resultant_start", "soft_labels"]

#: inflation of the null (classes are related, not independent) and strength of its prior; posteriors are averaged over all.
_SETTINGS = tuple((inflation, strength) for inflation in (1.0, 1.25) for strength in (0.05, 0.2, 1.0))
_ROUNDS = 60
_SOME = 0.15  # share of unknown that a fit per class needs
_OVERLAP = 1.75  # separation below which the known are fitted per class too
#: weight of the fits per class where prototypes are blurred, and where the groups overlap. With equal weights, chance decides
#: about a class that the common fits call unknown and the fits per class known; where prototypes are blurred it is known.
_BLURRED_WEIGHT, _OVERLAP_WEIGHT = 0.6, 0.5
_PRIOR = 0.1  # imaginary samples of each class, in mean class sizes


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


def _log_odds(x: Union[float, np.ndarray], centre: np.ndarray, fit: "TwoGroups") -> np.ndarray:
    """Log ratio of the normal densities of known, around ``centre``, and unknown."""
    known, unknown = (x - centre) / fit.known_std, (x - fit.unknown_mean) / fit.unknown_std
    return np.asarray((unknown**2 - known**2) / 2 - math.log(fit.known_std / fit.unknown_std))


def local_means(z: np.ndarray, neighbours: int = 15, anchors: int = 5000, chunk: int = 1024) -> np.ndarray:
    """Unit mean of the ``neighbours`` nearest rows of each unit row, among ``anchors`` rows at most: time stays linear."""
    pool = z if len(z) <= anchors else z[((np.arange(anchors) + 0.5) * len(z) / anchors).astype(np.int64)]
    number = min(neighbours, len(pool))
    out = np.empty_like(z)
    for start in range(0, len(z), chunk):
        near = z[start : start + chunk] @ pool.T
        out[start : start + chunk] = pool[np.argpartition(-near, number - 1, axis=1)[:, :number]].mean(1)
    return unit(out)


def border(a: float) -> float:
    r"""Where a cosine is as probable around a prototype with mean cosine a as around the origin, both densities being round."""
    return float(a + (1 - a * a) * np.log1p(-a * a) / (2 * a))


def resultant_start(best: np.ndarray) -> float:
    """A first guess of the mean cosine of the known: the fixed point of "a is the mean of those above ``border(a)``"."""
    a = float(np.clip(np.quantile(best, 0.9), 0.02, 0.98))
    for _ in range(100):
        above = best > border(a)
        a, old = float(np.clip(best[above].mean() if above.any() else best.max(), 0.02, 0.98)), a
        if abs(a - old) < 1e-5:
            break
    return a


@dataclass
class TwoGroups:
    """Means and standard deviations of the two groups, and the posterior of *known* of every sample."""

    unknown_mean: float
    unknown_std: float
    known_mean: float
    known_std: float
    known: np.ndarray

    @property
    def separation(self) -> float:
        """Distance of the two means in units of their mean standard deviation."""
        return (self.known_mean - self.unknown_mean) / max((self.known_std + self.unknown_std) / 2, 1e-9)


def null_spread(cosines: np.ndarray) -> float:
    """Standard deviation of the cosines with all classes but the nearest; with one class, of its own."""
    others = np.sort(cosines, axis=1)[:, :-1] if cosines.shape[1] > 1 else cosines
    return max(float(others.std()), 1e-3)


def fit_two_groups(cosines: np.ndarray, inflation: float = 1.0, strength: float = 0.2, per_class: bool = False) -> TwoGroups:
    """EM on the best of cosines (N, K); the null is multiplied by ``inflation``, ``strength`` N imaginary samples hold it.

    ``per_class``: among the samples nearest to a class the known have a mean and a share of their own.
    """
    n, k = cosines.shape
    nearest, best = cosines.argmax(1), cosines.max(1).astype(np.float64)
    spread = null_spread(cosines)
    null, start = inflation * spread * expected_maximum(k), resultant_start(best)
    above = best[best > border(start)]
    std = max(float(above.std()) if len(above) > 2 else 0.0, spread)
    fit = TwoGroups(null, spread, max(start, null + 2 * spread), std, np.full(n, 0.5))
    centre, share, sizes, prior = np.full(k, fit.known_mean), np.full(k, 0.5), np.bincount(nearest, minlength=k), _PRIOR * n / k
    for _ in range(_ROUNDS):
        # A cosine below the mean of the unknown indicates a class no more than that mean does.
        own = centre[nearest]
        odds, least = _log_odds(best, own, fit), _log_odds(fit.unknown_mean, own, fit)
        odds = np.where(best <= fit.unknown_mean, np.minimum(odds, least), odds)
        fit.known = expit(odds + np.log(share / (1 - share))[nearest])
        fit.unknown_mean, fit.unknown_std = _moments(best, 1 - fit.known, null, spread, strength * n)
        fit.known_mean, fit.known_std = _moments(best, fit.known, start, spread, 0.01 * n)
        centre, share = np.full(k, fit.known_mean), np.full(k, fit.known.mean())
        if per_class:
            mass, total = (np.bincount(nearest, weight, minlength=k) for weight in (fit.known, fit.known * best))
            centre = np.maximum((total + prior * centre) / (mass + prior), fit.unknown_mean + 2 * fit.unknown_std)
            share = (mass + prior * share) / (sizes + prior)
            # A spread below that of the null would lose a class before its mean has moved to it.
            fit.known_std = max(_spread(best - centre[nearest], fit.known, spread, 0.01 * n), spread)
        share = np.clip(share, 0.01, 0.99)
    return fit


def _moments(x: np.ndarray, weight: np.ndarray, mean: float, std: float, prior: float) -> Tuple[float, float]:
    """Weighted mean and standard deviation, with ``prior`` imaginary samples of the given ones."""
    centre = float(((weight * x).sum() + prior * mean) / (weight.sum() + prior))
    return centre, _spread(x - centre, weight, std, prior)


def _spread(residual: np.ndarray, weight: np.ndarray, std: float, prior: float) -> float:
    """Weighted standard deviation around zero, with ``prior`` imaginary samples of the given one."""
    return math.sqrt(float(((weight * residual**2).sum() + prior * std**2) / (weight.sum() + prior)))


def soft_labels(cosines: np.ndarray, blurred: bool = False) -> Tuple[np.ndarray, List[TwoGroups]]:
    """Posterior (N, K + 1), "nearest prototype or unknown", of cosines (N, K); and the fits to all classes together.

    Fits per class join these where the prototypes are ``blurred`` by doubtful source labels or the groups overlap; but only
    where there are unknown samples to hold the place of the unknown: without any, a class far from its prototype would be
    taken for them.
    """
    fits = [fit_two_groups(cosines, *setting) for setting in _SETTINGS]
    overlap = np.median([fit.separation for fit in fits]) < _OVERLAP
    known = np.mean([fit.known for fit in fits], axis=0)
    if (blurred or overlap) and 1 - known.mean() >= _SOME:
        weight = _BLURRED_WEIGHT if blurred else _OVERLAP_WEIGHT
        per_class = [fit_two_groups(cosines, *setting, per_class=True).known for setting in _SETTINGS]
        known = (1 - weight) * known + weight * np.mean(per_class, axis=0)
    out = np.zeros((len(cosines), cosines.shape[1] + 1))
    out[np.arange(len(cosines)), cosines.argmax(1)] = known
    out[:, -1] = 1 - known
    return out, fits
