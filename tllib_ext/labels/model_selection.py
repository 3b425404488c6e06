r"""Model selection of the label model: initialisations and structures, compared by labels predicted from the others."""

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import numpy as np

from tllib_ext.labels.discriminative import best_temperature
from tllib_ext.labels.em import STRUCTURES, EMStep, em_steps, leave_one_out_cosine
from tllib_ext.labels.embedding import Axes, evenly_spaced
from tllib_ext.labels.initialisation import rate_log_prior
from tllib_ext.typing import Record

__all__ = [
    "Candidate",
    "SortedSamples",
    "select_rank",
    "fit_structure",
    "run_em",
    "cross_validate",
    "label_folds",
    "noise_free_candidate",
    "overlap_margin",
]

_FIRST = 3  # earlier steps still depend on the initialisation, which has seen every label
_STEPS = 16
_FOLDS = 4
_FOLD_STEPS = 6
_OVERLAP = np.geomspace(0.01, 3.0, 40)  # temperatures of classes that overlap


@dataclass
class SortedSamples:
    """Samples sorted by label and cut at ``bounds``; only labels that occur take part."""

    g: np.ndarray
    y: np.ndarray
    bounds: np.ndarray
    z: np.ndarray  # coordinates that are not whitened, for the discriminative view

    def wrong_probability(self, r: np.ndarray) -> np.ndarray:
        """Probability that the observed label is wrong."""
        return 1 - r[np.arange(len(self.y)), self.y]

    def one_hot(self) -> np.ndarray:
        """Responsibilities under which every label is right."""
        return np.eye(len(self.bounds) - 1, dtype=np.float32)[self.y]

    def subsample(self, limit: int) -> np.ndarray:
        """At most about ``limit`` positions: all of small classes, evenly spaced ones of large classes."""
        sizes = np.diff(self.bounds)
        low, high = 1, int(sizes.max())
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if np.minimum(sizes, middle).sum() <= limit else (low, middle - 1)
        return np.concatenate([self.bounds[k] + evenly_spaced(int(size), low) for k, size in enumerate(sizes)])

    def take(self, rows: np.ndarray) -> "SortedSamples":
        """The samples at these positions."""
        y = self.y[rows]
        return SortedSamples(self.g[rows], y, np.searchsorted(y, np.arange(len(self.bounds))), self.z[rows])


@dataclass
class Candidate:
    """A structure and an initialisation, the best EM step from there, and how it predicts hidden labels."""

    structure: str
    start: str
    best: EMStep
    trace: List[Dict[str, float]]
    held_out: float = float("-inf")
    rate_std: float = 0.0

    def row(self, data: SortedSamples) -> Record:
        """For the table of candidates."""
        return {
            "structure": self.structure,
            "start": self.start,
            "log_likelihood": self.best.log_likelihood,
            "rate": float(data.wrong_probability(self.best.responsibilities).mean()),
            "held_out": self.held_out if np.isfinite(self.held_out) else None,
        }


def run_em(
    data: SortedSamples, r: np.ndarray, structure: str, temperature: Optional[float] = None
) -> Tuple[EMStep, List[Dict[str, float]]]:
    """EM from one initialisation; the best of its steps, not the last, and their trace."""
    best: Optional[EMStep] = None
    trace: List[Dict[str, float]] = []
    for number, one in enumerate(em_steps(data.g, data.y, data.bounds, r, STRUCTURES[structure], _STEPS, temperature)):
        wrong = data.wrong_probability(one.responsibilities)
        trace.append(
            {
                "round": number,
                "log_likelihood": one.log_likelihood,
                "temperature": one.temperature,
                "rate": float(wrong.mean()),
                "changed": float((wrong > 0.5).mean()),
            }
        )
        one.score = one.log_likelihood + rate_log_prior(one.responsibilities, data.bounds)
        if best is None or number <= _FIRST or one.score > best.score:
            best = one
    assert best is not None  # at least one step
    return best, trace


def fit_structure(data: SortedSamples, points: Dict[str, np.ndarray], structure: str) -> List[Candidate]:
    """Candidates of one structure from every initialisation, best first."""
    found = [Candidate(structure, name, *run_em(data, r, structure)) for name, r in points.items()]
    return sorted(found, key=lambda c: -c.best.score)


def select_rank(part: SortedSamples, axes: Axes) -> int:
    """How many directions to whiten: what predicts a label best from the mean features of the other labels."""
    classes = len(part.bounds) - 1
    scores = {}
    for rank in (classes, 3 * classes, 9 * classes):
        g = axes.rescale(part.z, rank)
        scores[rank] = next(em_steps(g, part.y, part.bounds, part.one_hot(), STRUCTURES["shared"], 1)).log_likelihood
    return max(scores, key=lambda rank: scores[rank])


def noise_free_candidate(data: SortedSamples, seed: int) -> Candidate:
    """The candidate without label noise, scored in the same way."""
    best = next(em_steps(data.g, data.y, data.bounds, data.one_hot(), STRUCTURES["shared"], 1))
    best.responsibilities = data.one_hot()
    candidate = Candidate("shared", "trust", best, [])
    cross_validate(data, candidate, seed, 1)
    return candidate


def overlap_margin(data: SortedSamples, candidate: Candidate) -> Tuple[float, float]:
    r"""Nats by which a noise model explains the labels better than its own prototypes do without noise, and the share of
    samples that the features leave undecided, :math:`1 - E \max_k p_{ik}`.

    The prototypes of a noise model may predict labels better than those of the given labels although nothing speaks for its
    noise: sharp classes with wrong labels and overlapping classes with right ones, a larger temperature, then explain the
    labels equally well.
    """
    best = candidate.best
    r, structure = best.responsibilities, STRUCTURES[candidate.structure]
    step = next(em_steps(data.g, data.y, data.bounds, r, structure, 1, best.temperature, similar=best.similar))
    without = best_temperature(leave_one_out_cosine(data.g, r), data.y, _OVERLAP)[0]
    return step.log_likelihood - without, float(1 - step.probabilities.max(1).mean())


def label_folds(data: SortedSamples, seed: int) -> np.ndarray:
    """The fold of each sample whose label is hidden together."""
    return np.random.default_rng(seed).permutation(len(data.y)) % _FOLDS


def cross_validate(data: SortedSamples, candidate: Candidate, seed: int, limit: int = _FOLD_STEPS) -> None:
    """Held-out likelihood of a candidate, and the standard error of its rate by the delete-a-group jackknife."""
    n, fold = len(data.y), label_folds(data, seed)
    structure, best = STRUCTURES[candidate.structure], candidate.best
    total, rates = 0.0, []
    for k in range(_FOLDS):
        seen = fold != k
        r = candidate.best.responsibilities * seen.astype(np.float32)[:, None]
        steps = em_steps(data.g, data.y, data.bounds, r, structure, limit, best.temperature, seen, 5e-3, best.similar)
        last = list(steps)[-1]
        total += last.held_out
        rates.append(float(data.wrong_probability(last.responsibilities)[seen].mean()))
    candidate.held_out = total + rate_log_prior(candidate.best.responsibilities, data.bounds)
    jackknife = (_FOLDS - 1) / _FOLDS * sum((rate - np.mean(rates)) ** 2 for rate in rates)
    wrong = data.wrong_probability(candidate.best.responsibilities)
    candidate.rate_std = float(np.sqrt(jackknife + (wrong * (1 - wrong)).sum() / n**2))
