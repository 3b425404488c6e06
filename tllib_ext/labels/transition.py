r"""What must the labels have been? Noise rate, transition matrix and corrected labels from noisy labels and features alone.

**Model.** Sample i has features :math:`g_i` (unit length, :func:`~tllib_ext.labels.embedding.embed`), an unseen true class
:math:`k` and an observed label :math:`\tilde y_i`, which depends on the true class only:

.. math::
    p(k \mid g_i) = \mathrm{softmax}_k\big(\cos(g_i, \mu_k) / T\big), \qquad
    p(\tilde y_i \mid k) = Q_{k \tilde y_i}, \qquad
    r_{ik} \propto p(k \mid g_i)\, Q_{k \tilde y_i}.

**Rounds.** Prototypes :math:`\mu_k \propto \sum_i r_{ik} g_i`; T by a line search; Q from the expected counts
:math:`C_{kj} = \sum_{i: \tilde y_i = j} r_{ik}` by absolute discounting towards one shared rate; then new responsibilities.
Everything that scores sample i leaves sample i out (its part is subtracted from :math:`\mu` and C in closed form), so

.. math::
    \mathcal L = \sum_i \log \sum_k p_{-i}(k \mid g_i)\, Q^{-i}_{k \tilde y_i}

is a prediction of each label from the others. It chooses T, the best round (rounds can drift away from classes towards
clusters) and the best start.

**Starts.** The labels themselves; and two groupings of small clusters, joined by features and by their label histograms.
The likelihood does not change when classes exchange their names, so names are settled last, by the most probable
assignment under "labels are right more often than not" (:func:`~tllib_ext.labels.starts.name_clusters`).

**Structure.** The discount is :math:`0.5` (a free matrix), :math:`2` (a sparse one) or :math:`\infty` (one shared rate),
whichever predicts labels best that were hidden from it (cross-validation). The same folds give the uncertainty of the rate
by the jackknife.

**Identifiable** if (1) the features tell the classes apart better than chance, (2) noise depends on the class and not on
the sample, (3) each class has its own mixture of labels, and (4) right labels outnumber any other consistent naming. Near
pair noise 0.5 condition (4) hangs on a few samples: the two directions round the cycle then differ in nothing else. Two
classes whose features coincide cannot be told from one class with noisy labels.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.labels.em import Round, posterior, rounds, transition_from_counts
from tllib_ext.labels.embedding import embed, rescale, spread
from tllib_ext.labels.moves import proposals
from tllib_ext.labels.starts import rename, starting_points

__all__ = ["LabelModel", "estimate_labels"]

STRUCTURES = {"shared": float("inf"), "sparse": 2.0, "free": 0.5}
_FIRST = 3  # earlier rounds still remember the start, which has seen every label
_ROUNDS = 16
_FOLDS = 4
_FOLD_ROUNDS = 6
_MOVES = 4
_MARGIN = 5.0  # nats by which noise must explain hidden labels better than no noise does


@dataclass
class LabelModel:
    r"""What :func:`estimate_labels` believes.

    Args:
        transition (numpy.ndarray): :math:`Q`, row = true class, column = observed label, :math:`(K, K)`
        responsibilities (numpy.ndarray): posterior of the true class, :math:`(N, K)`
        corrected (numpy.ndarray): most probable class, the observed one if tied, :math:`(N,)`
        confidence (numpy.ndarray): its probability, :math:`(N,)`
        rate (float): expected share of wrong labels
        rate_std (float): its standard error (jackknife over label folds and posterior variance)
        log_likelihood (float): leave-one-out log-likelihood of the observed labels
        temperature (float): :math:`T`
        structure (str): ``shared``, ``sparse`` or ``free``
        start (str): which start won
        trace (list[dict]): one entry per round of the winning start
        candidates (list[dict]): every start and structure that was compared
    """

    transition: np.ndarray
    responsibilities: np.ndarray
    corrected: np.ndarray
    confidence: np.ndarray
    rate: float
    rate_std: float
    log_likelihood: float
    temperature: float
    structure: str
    start: str
    trace: List[Dict[str, float]] = field(default_factory=list)
    candidates: List[Dict[str, Any]] = field(default_factory=list)

    def summary(self) -> str:
        """A few lines for a log."""
        n, k = self.responsibilities.shape
        flips = self.transition - np.diag(np.diag(self.transition))
        a, b = np.unravel_index(flips.argmax(), flips.shape)
        return (
            f"label model: {n} labels of {k} classes, {self.rate:.1%} ± {self.rate_std:.1%} believed wrong\n"
            f"  matrix {self.structure}, start {self.start}, temperature {self.temperature:.3f}, "
            f"log-likelihood per label {self.log_likelihood / max(n, 1):.3f}\n"
            f"  mean confidence {self.confidence.mean():.3f}, most frequent flip {a} -> {b} ({flips[a, b]:.1%})"
        )


@dataclass
class _Sorted:
    """The samples sorted by label; only labels that occur take part."""

    g: np.ndarray
    y: np.ndarray
    bounds: np.ndarray

    def wrong(self, r: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Probability that the observed label is wrong."""
        return 1 - r[np.arange(len(self.y)), self.y][rows]

    def part(self, limit: int) -> np.ndarray:
        """At most about ``limit`` positions: all of small classes, evenly spread ones of large classes."""
        sizes = np.diff(self.bounds)
        low, high = 1, int(sizes.max())
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if np.minimum(sizes, middle).sum() <= limit else (low, middle - 1)
        return np.concatenate([start + spread(size, low) for start, size in zip(self.bounds, sizes)])

    def take(self, rows: np.ndarray) -> "_Sorted":
        y = self.y[rows]
        return _Sorted(self.g[rows], y, np.searchsorted(y, np.arange(len(self.bounds))))


@dataclass
class _Candidate:
    structure: str
    start: str
    best: Round
    trace: List[Dict[str, float]]
    score: float = float("-inf")
    rate_std: float = 0.0


def estimate_labels(
    features: Any,
    labels: Any,
    num_classes: int,
    seed: int = 0,
    previous: Optional[LabelModel] = None,
    limit: int = 2500,
) -> LabelModel:
    r"""Estimate the label noise of a data set: see the head of this file for the model.

    Args:
        features (numpy.ndarray or torch.Tensor): backbone features
        labels (numpy.ndarray or torch.Tensor): observed labels, ``0..num_classes-1``
        num_classes (int): :math:`K`
        seed (int, optional): of clusters and folds. Default: 0
        previous (LabelModel, optional): an earlier model of the same samples: its structure is kept and its
            responsibilities are one more start. Default: None
        limit (int, optional): starts and structures are compared on so many samples, the winner then sees all.
            Default: 2500

    Shape:
        - features: :math:`(N, D)`, labels: :math:`(N,)`

    Examples::

        >>> rng = np.random.default_rng(0)
        >>> true = np.repeat(np.arange(4), 50)
        >>> features = np.eye(4)[true] + 0.1 * rng.standard_normal((200, 4))
        >>> noisy = np.where(rng.random(200) < 0.3, (true + 1) % 4, true)
        >>> model = estimate_labels(features, noisy, 4)
        >>> bool((model.corrected == true).all()), round(model.rate, 2), round(float((noisy != true).mean()), 2)
        (True, 0.29, 0.29)
    """
    x, y = _checked(features, labels, num_classes)
    present, y_small = np.unique(y, return_inverse=True)
    if previous is not None and previous.responsibilities.shape != (len(y), num_classes):
        raise UserError(
            f"previous label model is for {previous.responsibilities.shape} samples and classes, "
            f"this data has {(len(y), num_classes)}: call without previous"
        )
    if len(present) == 1:  # nothing to compare with
        return _finish(np.ones((len(y), 1), dtype=np.float32), y, present, num_classes, None, 0.0)
    coordinates, scale = embed(x, len(present), seed)
    order = np.lexsort((coordinates[:, 0], y_small))  # results do not depend on the order of the samples
    data = _Sorted(coordinates[order], y_small[order], np.searchsorted(y_small[order], np.arange(len(present) + 1)))
    rows = data.part(limit)
    data.g = rescale(data.g, scale, _best_rank(data.take(rows), scale))
    warm = None if previous is None else previous.responsibilities[order][:, present].astype(np.float32)
    part = data if len(rows) == len(data.y) else data.take(rows)
    points = starting_points(part.g, part.y, part.bounds, (0.18, 0.35), seed, 2 if previous is None else 0)
    if warm is not None:
        points["previous"] = _normalised(warm[rows])
        found = [_best_start(part, points, previous.structure)]
    else:
        free = _best_start(part, points, "free")
        _escape(part, free[0])
        # The other structures start where the free matrix arrived; symmetric noise may need the labels themselves.
        points = {free[0].start: free[0].best.responsibilities, "labels": points["labels"]}
        found = [free] + [_best_start(part, points, name) for name in ("sparse", "shared")]
    for candidates in found:
        _cross_validate(part, candidates[0], seed)
    found.append([_trusting(part, seed)])
    winner = max((candidates[0] for candidates in found), key=lambda c: c.score)
    if winner.score < found[-1][0].score + _MARGIN:
        winner = found[-1][0]
    table = [
        {"structure": c.structure, "start": c.start, "log_likelihood": c.best.log_likelihood,
         "rate": float(part.wrong(c.best.responsibilities).mean()), "held_out": c.score if np.isfinite(c.score) else None}
        for candidates in found for c in candidates
    ]
    r = winner.best.responsibilities
    if winner.start == "trust":
        r = np.eye(len(present), dtype=np.float32)[data.y]
    elif part is not data:
        _, r = posterior(data.g, data.y, r.T @ part.g, winner.best.transition, winner.best.temperature)
        winner.best, trace = _climb(data, r, winner.structure, winner.best.temperature)
        winner.trace += trace
        r = winner.best.responsibilities
    back = np.empty_like(r)
    back[order] = rename(r, data.bounds)
    model = _finish(back, y, present, num_classes, winner, winner.rate_std)
    model.candidates = table
    return model


def _checked(features: Any, labels: Any, num_classes: int) -> Tuple[np.ndarray, np.ndarray]:
    x, y = (np.asarray(v.detach().cpu() if hasattr(v, "detach") else v) for v in (features, labels))
    if x.ndim != 2 or y.shape != x.shape[:1] or len(y) == 0:
        raise UserError(f"features {x.shape} and labels {y.shape} do not fit: expected (N, D) and (N,) with N > 0")
    if not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"labels are {y.dtype}: expected integers 0..{num_classes - 1}")
    if y.min() < 0 or y.max() >= num_classes:
        raise UserError(f"labels run from {y.min()} to {y.max()}: expected 0..{num_classes - 1}")
    bad = np.count_nonzero(~np.isfinite(x).all(1))
    if bad:
        raise UserError(f"{bad} of {len(x)} feature rows are not finite: expected finite numbers, check the backbone")
    return x, y.astype(np.int64)


def _normalised(r: np.ndarray) -> np.ndarray:
    r = r + 1e-6
    return r / r.sum(1, keepdims=True)


def _climb(
    data: _Sorted, r: np.ndarray, structure: str, temperature: Optional[float] = None
) -> Tuple[Round, List[Dict[str, float]]]:
    """Rounds from one start; the best one by likelihood, not the last, and their trace."""
    best, trace = None, []
    for number, one in enumerate(rounds(data.g, data.y, data.bounds, r, STRUCTURES[structure], _ROUNDS, temperature)):
        wrong = data.wrong(one.responsibilities)
        trace.append({"round": number, "log_likelihood": one.log_likelihood, "temperature": one.temperature,
                      "rate": float(wrong.mean()), "changed": float((wrong > 0.5).mean())})
        if number <= _FIRST or one.log_likelihood > best.log_likelihood:
            best = one
    return best, trace


def _best_start(data: _Sorted, points: Dict[str, np.ndarray], structure: str) -> List[_Candidate]:
    found = [_Candidate(structure, name, *_climb(data, r, structure)) for name, r in points.items()]
    return sorted(found, key=lambda c: -c.best.log_likelihood)


def _escape(data: _Sorted, candidate: _Candidate) -> None:
    """Join-and-cut moves as long as one of the most promising raises the likelihood."""
    improved = True
    while improved:
        improved = False
        r = candidate.best.responsibilities
        for start in proposals(data.g, data.y, data.bounds, r, _MOVES):
            best, trace = _climb(data, start, candidate.structure, candidate.best.temperature)
            if best.log_likelihood > candidate.best.log_likelihood + 1:
                candidate.best, candidate.trace, improved = best, candidate.trace + trace, True
                break


def _best_rank(part: _Sorted, scale: np.ndarray) -> int:
    """How many directions to whiten: what predicts a label best from the mean features of the other samples' labels."""
    classes = len(part.bounds) - 1
    hard = np.eye(classes, dtype=np.float32)[part.y]
    scores = {}
    for rank in (classes, 3 * classes, 9 * classes):
        g = rescale(part.g, scale, rank)
        scores[rank] = next(rounds(g, part.y, part.bounds, hard, np.inf, 1)).log_likelihood
    return max(scores, key=scores.get)


def _trusting(data: _Sorted, seed: int) -> _Candidate:
    """The rival without noise: labels as they are, scored in the same way."""
    hard = np.eye(len(data.bounds) - 1, dtype=np.float32)[data.y]
    best = next(rounds(data.g, data.y, data.bounds, hard, np.inf, 1))
    best.responsibilities = hard
    candidate = _Candidate("shared", "trust", best, [])
    _cross_validate(data, candidate, seed, 1)
    return candidate


def _cross_validate(data: _Sorted, candidate: _Candidate, seed: int, limit: int = _FOLD_ROUNDS) -> None:
    """Held-out likelihood of a candidate, and the standard error of its rate by the delete-a-group jackknife."""
    n = len(data.y)
    fold = np.random.default_rng(seed).permutation(n) % _FOLDS
    total, rates = 0.0, []
    for k in range(_FOLDS):
        seen = fold != k
        r = candidate.best.responsibilities * seen.astype(np.float32)[:, None]
        if np.unique(data.y[seen]).size < len(data.bounds) - 1:  # a class of one sample: keep its label
            seen = seen | np.isin(data.y, np.flatnonzero(np.bincount(data.y) <= 1))
        for one in rounds(data.g, data.y, data.bounds, r, STRUCTURES[candidate.structure], limit,
                          candidate.best.temperature, seen, 5e-3):
            pass
        total += one.held_out
        rates.append(float(data.wrong(one.responsibilities, seen).mean()))
    candidate.score = total
    jackknife = (_FOLDS - 1) / _FOLDS * sum((rate - np.mean(rates)) ** 2 for rate in rates)
    wrong = data.wrong(candidate.best.responsibilities)
    candidate.rate_std = float(np.sqrt(jackknife + (wrong * (1 - wrong)).sum() / n**2))


def _finish(
    r: np.ndarray, y: np.ndarray, present: np.ndarray, num_classes: int, winner: Optional[_Candidate], std: float
) -> LabelModel:
    full = np.zeros((len(y), num_classes), dtype=np.float32)
    full[:, present] = r
    rows = np.arange(len(y))
    corrected = np.where(full[rows, y] >= full.max(1), y, full.argmax(1))
    counts = np.stack([np.bincount(y, full[:, k], num_classes) for k in present])[:, present]
    transition = np.eye(num_classes)  # a class without labels keeps its name
    structure = winner.structure if winner else "shared"
    if len(present) > 1:
        transition[np.ix_(present, present)] = transition_from_counts(counts, STRUCTURES[structure])
    return LabelModel(
        transition=transition, responsibilities=full, corrected=corrected, confidence=full[rows, corrected],
        rate=float(1 - full[rows, y].mean(dtype=np.float64)), rate_std=std,
        log_likelihood=winner.best.log_likelihood if winner else 0.0,
        temperature=winner.best.temperature if winner else 0.0, structure=structure,
        start=winner.start if winner else "labels", trace=winner.trace if winner else [],
    )
