r"""The search behind the label model: starts, structures and their comparison by labels predicted from the others."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from tllib_ext.labels.em import Round, rounds
from tllib_ext.labels.embedding import rescale, spread
from tllib_ext.labels.starts import unevenness

__all__ = ["STRUCTURES", "Candidate", "Sorted", "best_rank", "best_start", "climb", "cross_validate", "trusting"]

#: Discounts of :func:`~tllib_ext.labels.em.transition_from_counts`.
STRUCTURES = {"shared": float("inf"), "sparse": 2.0, "free": 0.5}
_FIRST = 3  # earlier rounds still remember the start, which has seen every label
_ROUNDS = 16
_FOLDS = 4
_FOLD_ROUNDS = 6


@dataclass
class Sorted:
    """Samples sorted by label and cut at ``bounds``; only labels that occur take part."""

    g: np.ndarray
    y: np.ndarray
    bounds: np.ndarray

    def wrong(self, r: np.ndarray) -> np.ndarray:
        """Probability that the observed label is wrong."""
        return 1 - r[np.arange(len(self.y)), self.y]

    def hard(self) -> np.ndarray:
        """Responsibilities that believe every label."""
        return np.eye(len(self.bounds) - 1, dtype=np.float32)[self.y]

    def part(self, limit: int) -> np.ndarray:
        """At most about ``limit`` positions: all of small classes, evenly spread ones of large classes."""
        sizes = np.diff(self.bounds)
        low, high = 1, int(sizes.max())
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if np.minimum(sizes, middle).sum() <= limit else (low, middle - 1)
        return np.concatenate([self.bounds[k] + spread(int(size), low) for k, size in enumerate(sizes)])

    def take(self, rows: np.ndarray) -> "Sorted":
        """The samples at these positions."""
        y = self.y[rows]
        return Sorted(self.g[rows], y, np.searchsorted(y, np.arange(len(self.bounds))))


@dataclass
class Candidate:
    """A structure and a start, the best round from there, and how it predicts hidden labels."""

    structure: str
    start: str
    best: Round
    trace: List[Dict[str, float]]
    held_out: float = float("-inf")
    rate_std: float = 0.0

    def row(self, data: Sorted) -> Dict[str, Any]:
        """For the table of candidates."""
        return {
            "structure": self.structure,
            "start": self.start,
            "log_likelihood": self.best.log_likelihood,
            "rate": float(data.wrong(self.best.responsibilities).mean()),
            "held_out": self.held_out if np.isfinite(self.held_out) else None,
        }


def climb(
    data: Sorted, r: np.ndarray, structure: str, temperature: Optional[float] = None
) -> Tuple[Round, List[Dict[str, float]]]:
    """Rounds from one start; the best of them, not the last, and their trace."""
    best, trace = None, []
    for number, one in enumerate(rounds(data.g, data.y, data.bounds, r, STRUCTURES[structure], _ROUNDS, temperature)):
        wrong = data.wrong(one.responsibilities)
        trace.append(
            {
                "round": number,
                "log_likelihood": one.log_likelihood,
                "temperature": one.temperature,
                "rate": float(wrong.mean()),
                "changed": float((wrong > 0.5).mean()),
            }
        )
        one.score = one.log_likelihood + unevenness(one.responsibilities, data.bounds)
        if number <= _FIRST or one.score > best.score:
            best = one
    return best, trace


def best_start(data: Sorted, points: Dict[str, np.ndarray], structure: str) -> List[Candidate]:
    """All starts with one structure, best first."""
    found = [Candidate(structure, name, *climb(data, r, structure)) for name, r in points.items()]
    return sorted(found, key=lambda c: -c.best.score)


def best_rank(part: Sorted, scale: np.ndarray) -> int:
    """How many directions to whiten: what predicts a label best from the mean features of the other labels."""
    classes = len(part.bounds) - 1
    scores = {}
    for rank in (classes, 3 * classes, 9 * classes):
        g = rescale(part.g, scale, rank)
        scores[rank] = next(rounds(g, part.y, part.bounds, part.hard(), np.inf, 1)).log_likelihood
    return max(scores, key=scores.get)


def trusting(data: Sorted, seed: int) -> Candidate:
    """The rival without noise: labels as they are, scored in the same way."""
    best = next(rounds(data.g, data.y, data.bounds, data.hard(), np.inf, 1))
    best.responsibilities = data.hard()
    candidate = Candidate("shared", "trust", best, [])
    cross_validate(data, candidate, seed, 1)
    return candidate


def cross_validate(data: Sorted, candidate: Candidate, seed: int, limit: int = _FOLD_ROUNDS) -> None:
    """Held-out likelihood of a candidate, and the standard error of its rate by the delete-a-group jackknife."""
    n = len(data.y)
    fold = np.random.default_rng(seed).permutation(n) % _FOLDS
    discount, temperature = STRUCTURES[candidate.structure], candidate.best.temperature
    total, rates = 0.0, []
    for k in range(_FOLDS):
        seen = fold != k
        r = candidate.best.responsibilities * seen.astype(np.float32)[:, None]
        last = list(rounds(data.g, data.y, data.bounds, r, discount, limit, temperature, seen, 5e-3))[-1]
        total += last.held_out
        rates.append(float(data.wrong(last.responsibilities)[seen].mean()))
    candidate.held_out = total + unevenness(candidate.best.responsibilities, data.bounds)
    jackknife = (_FOLDS - 1) / _FOLDS * sum((rate - np.mean(rates)) ** 2 for rate in rates)
    wrong = data.wrong(candidate.best.responsibilities)
    candidate.rate_std = float(np.sqrt(jackknife + (wrong * (1 - wrong)).sum() / n**2))
