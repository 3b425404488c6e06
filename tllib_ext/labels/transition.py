r"""The label model: noise rate, transition matrix and corrected labels, estimated from noisy labels and features.

**Model.** Sample i has features :math:`g_i` (unit length, :mod:`~tllib_ext.labels.embedding`), an unseen true class k
and an observed label :math:`\tilde y_i`, which depends on the true class only:

.. math::
    p(k \mid g_i) = \mathrm{softmax}_k\big(\cos(g_i, \mu_k) / T\big), \qquad
    p(\tilde y_i \mid k) = Q_{k \tilde y_i}, \qquad
    r_{ik} \propto p(k \mid g_i)\, Q_{k \tilde y_i}.

**EM steps** (:mod:`~tllib_ext.labels.em`). Prototypes :math:`\mu_k \propto \sum_i r_{ik} g_i`; T by a line search; Q from
the expected counts :math:`C_{kj} = \sum_{i: \tilde y_i = j} r_{ik}` by absolute discounting towards one shared rate;
then new responsibilities. The score of sample i leaves sample i out (its part is subtracted from :math:`\mu` and C), so

.. math::
    \mathcal L = \sum_i \log \sum_k p_{-i}(k \mid g_i)\, Q^{-i}_{k \tilde y_i}

is a prediction of each label from the others. With a prior that classes have similar rates it chooses the temperature,
the EM step (EM can drift from classes to clusters) and the initialisation.

**Initialisations** (:mod:`~tllib_ext.labels.initialisation`). The labels; and groups of small clusters, merged by features
and label histograms. The likelihood does not change under permutations of the classes, so clusters are matched to labels
by the most probable assignment under "labels are mostly right".

**Structure** (:mod:`~tllib_ext.labels.model_selection`). The discount is 0.5 (a free matrix), 2 (a sparse one) or infinite (one
shared rate), whichever best predicts held-out labels. A candidate without noise is compared as well: where features
give no evidence of noise the labels are kept. The same folds give the standard error of the rate (jackknife).

**Identifiable** if (1) features separate the classes better than chance, (2) noise depends on the class and not on
the sample, (3) each class has its own mixture of labels, and (4) right labels outnumber those of any other consistent matching.
Near pair noise 0.5 condition (4) depends on a few samples: the two directions of the cycle differ in nothing else. Two
classes whose features coincide cannot be distinguished from one class with noisy labels, nor two kinds of one class from two.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple, cast

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.labels.em import posterior, transition_from_counts
from tllib_ext.labels.embedding import embed, rescale
from tllib_ext.labels.initialisation import initial_responsibilities, order_by_label
from tllib_ext.labels.model_selection import (
    STRUCTURES,
    Candidate,
    SortedSamples,
    cross_validate,
    fit_structure,
    noise_free_candidate,
    run_em,
    select_rank,
)
from tllib_ext.typing import Record, Values

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LabelModel", "estimate_labels"]

_MARGIN = 5.0  # nats by which noise must explain hidden labels better than no noise does


@dataclass
class LabelModel:
    r"""The result of :func:`estimate_labels`.

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
        start (str): the initialisation of the chosen model; ``trust`` if there is no evidence of noise
        trace (list[dict]): one entry per EM step of the chosen model
        candidates (list[dict]): every initialisation and structure that was compared
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
    candidates: List[Record] = field(default_factory=list)

    def summary(self, names: Optional[Sequence[str]] = None) -> str:
        """A few lines for a log; classes by their ``names``, or by number."""
        n, k = self.responsibilities.shape
        names = names or [str(i) for i in range(k)]
        flips = self.transition - np.diag(np.diag(self.transition))
        a, b = np.unravel_index(flips.argmax(), flips.shape)
        return (
            f"label model: {n} labels of {k} classes, {self.rate:.1%} ± {self.rate_std:.1%} estimated wrong\n"
            f"  matrix {self.structure}, start {self.start}, temperature {self.temperature:.3f}, "
            f"log-likelihood per label {self.log_likelihood / max(n, 1):.3f}\n"
            f"  mean confidence {self.confidence.mean():.3f}, most frequent flip {names[a]} -> {names[b]} ({flips[a, b]:.1%})"
        )


def estimate_labels(
    features: Values, labels: Values, num_classes: int, seed: int = 0, previous: Optional[LabelModel] = None, limit: int = 2500
) -> LabelModel:
    r"""Estimate the label noise of a data set: see the head of this file for the model.

    Args:
        features (numpy.ndarray or torch.Tensor): backbone features
        labels (numpy.ndarray or torch.Tensor): observed labels, ``0..num_classes-1``
        num_classes (int): :math:`K`
        seed (int, optional): of clusters and folds. Default: 0
        previous (LabelModel, optional): an earlier model of the same samples: its structure is kept and its
            responsibilities are one more initialisation. Default: None
        limit (int, optional): candidates are compared on at most so many samples, the chosen one is then fitted to all.
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
        return _finish(np.ones((len(y), 1), dtype=np.float32), y, present, num_classes, None)
    coordinates, scale = embed(x, len(present), seed)
    order = np.lexsort((coordinates[:, 0], y_small))  # results do not depend on the order of the samples
    data = SortedSamples(coordinates[order], y_small[order], np.searchsorted(y_small[order], np.arange(len(present) + 1)))
    rows = data.subsample(limit)
    data.g = rescale(data.g, scale, select_rank(data.take(rows), scale))
    part = data if len(rows) == len(data.y) else data.take(rows)

    points = initial_responsibilities(part.g, part.y, part.bounds, (0.18, 0.35), seed, 2 if previous is None else 0)
    if previous is not None:
        points["previous"] = _normalised(previous.responsibilities[order][rows][:, present])
        found = [fit_structure(part, points, previous.structure)]
    else:
        free = fit_structure(part, points, "free")
        # The other structures are initialised by the free matrix's result; symmetric noise may need the labels themselves.
        points = {free[0].start: free[0].best.responsibilities, "labels": points["labels"]}
        found = [free] + [fit_structure(part, points, name) for name in ("sparse", "shared")]
    for candidates in found:
        cross_validate(part, candidates[0], seed)
    trust = noise_free_candidate(part, seed)
    winner = max((candidates[0] for candidates in found), key=lambda c: c.held_out)
    winner = winner if winner.held_out > trust.held_out + _MARGIN else trust
    table = [candidate.row(part) for candidate in sum(found, []) + [trust]]

    r = winner.best.responsibilities
    if winner is trust:
        r = data.one_hot()
    elif part is not data:
        r = posterior(data.g, data.y, r.T @ part.g, winner.best.transition, winner.best.temperature)
        winner.best, trace = run_em(data, r, winner.structure, winner.best.temperature)
        winner.trace += trace
        r = winner.best.responsibilities
    back = np.empty_like(r)
    back[order] = order_by_label(r, data.bounds)
    model = _finish(back, y, present, num_classes, winner)
    model.candidates = table
    return model


def _checked(features: Values, labels: Values, num_classes: int) -> Tuple[np.ndarray, np.ndarray]:
    x, y = (np.asarray(cast("Tensor", v).detach().cpu() if hasattr(v, "detach") else v) for v in (features, labels))
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
    r = r.astype(np.float32) + np.float32(1e-6)
    return r / r.sum(1, keepdims=True)


def _finish(r: np.ndarray, y: np.ndarray, present: np.ndarray, num_classes: int, winner: Optional[Candidate]) -> LabelModel:
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
        transition=transition,
        responsibilities=full,
        corrected=corrected,
        confidence=full[rows, corrected],
        rate=float(1 - full[rows, y].mean(dtype=np.float64)),
        rate_std=winner.rate_std if winner else 0.0,
        log_likelihood=winner.best.log_likelihood if winner else 0.0,
        temperature=winner.best.temperature if winner else 0.0,
        structure=structure,
        start=winner.start if winner else "trust",
        trace=winner.trace if winner else [],
    )
