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

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple, cast

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.labels.discriminative import Ridge, Views, fit_views
from tllib_ext.labels.duplicates import distinct_samples
from tllib_ext.labels.em import EMStep, expected_counts, posterior
from tllib_ext.labels.embedding import Axes, principal_axes
from tllib_ext.labels.initialisation import initial_responsibilities, names_tie, order_by_label, renamed_rates
from tllib_ext.labels.model_selection import (
    SortedSamples,
    cross_validate,
    fit_structure,
    label_folds,
    noise_free_candidate,
    overlap_margin,
    run_em,
    select_rank,
)
from tllib_ext.labels.result import LabelModel, all_classes, make_model, noise_free_responsibilities
from tllib_ext.labels.uncertainty import (
    KNOWN_WIDTH,
    doubtful_labels,
    keep_labels_of,
    neighbours_object,
    rate_bounds,
    unnamed_classes,
)
from tllib_ext.typing import Values

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FittedViews", "LabelModel", "checked", "estimate_labels", "fit_labels"]

_MANY = 150  # from so many classes on, only the class-conditional structures and the labels as initialisation are tried
_MARGIN = 5.0  # nats by which noise must explain hidden labels better than no noise does
_NONE, _LITTLE = 0.02, 0.15  # a rate below the second whose interval begins below the first: the labels may as well be clean
_UNDECIDED = 100.0  # nats of evidence per share of samples that features leave undecided: else EM finds noise in weak features


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
    return fit_labels(*checked(features, labels, num_classes), num_classes, seed, previous, limit)[0]


class FittedViews(NamedTuple):
    """What a label model was fitted with, to judge samples by it: feature space, both views and noise model."""

    axes: Axes
    rank: int
    views: Views
    step: Optional[EMStep]  # of the chosen noise model; None without evidence of noise


def fit_labels(
    x: np.ndarray, y: np.ndarray, num_classes: int, seed: int = 0, previous: Optional[LabelModel] = None, limit: int = 2500
) -> Tuple[LabelModel, Optional[FittedViews]]:
    """:func:`estimate_labels` of checked arrays, with what it fitted (None for a single class)."""
    present, y_small = np.unique(y, return_inverse=True)
    if previous is not None and previous.responsibilities.shape != (len(y), num_classes):
        raise UserError(
            f"previous label model is for {previous.responsibilities.shape} samples and classes, "
            f"this data has {(len(y), num_classes)}: call without previous"
        )
    if len(present) == 1:  # nothing to compare with
        return make_model(np.ones((len(y), 1), dtype=np.float32), y, present, num_classes, None), None
    kept, place = distinct_samples(x, y)
    if len(kept) < len(y):
        earlier = None if previous is None else replace(previous, responsibilities=previous.responsibilities[kept])
        model, fitted = fit_labels(x[kept], y[kept], num_classes, seed, earlier, limit)
        return model.of_copies(place, y), fitted
    axes = principal_axes(x, len(present), seed)
    coordinates = axes.project(x)
    order = np.lexsort((coordinates[:, 0], y_small))  # results do not depend on the order of the samples
    bounds = np.searchsorted(y_small[order], np.arange(len(present) + 1))
    coordinates = coordinates[order]
    data = SortedSamples(coordinates, y_small[order], bounds, coordinates)
    rows = data.subsample(limit)
    rank = select_rank(data.take(rows), axes)
    data.g = axes.rescale(coordinates, rank)
    part = data if len(rows) == len(data.y) else data.take(rows)

    few = len(present) <= _MANY
    draws = 2 if previous is None and few else 0
    points = initial_responsibilities(part.g, part.y, part.bounds, (0.18, 0.35), seed, draws)
    if previous is not None:
        points["previous"] = _normalised(previous.responsibilities[order][rows][:, present])
        found = [fit_structure(part, points, previous.structure)]
    else:
        free = fit_structure(part, points, "free")
        # The other structures are initialised by the free matrix's result; symmetric noise may need the labels themselves.
        points = {free[0].start: free[0].best.responsibilities, "labels": points["labels"]}
        others = ("sparse", "shared", "similar", "mixed") if few else ("shared",)
        found = [free] + [fit_structure(part, points, name) for name in others]
    for candidates in found:
        cross_validate(part, candidates[0], seed)
    trust = noise_free_candidate(part, seed)
    ridge = Ridge.held_out(part.z, part.y, len(present), label_folds(part, seed))
    winner = max((candidates[0] for candidates in found), key=lambda c: c.held_out)
    margin = winner.held_out - max(trust.held_out, ridge)
    if margin > _MARGIN:
        overlap, undecided = overlap_margin(part, winner)
    if margin <= _MARGIN or margin + overlap < _UNDECIDED * undecided:
        winner = trust
    table = [candidate.row(part) for candidate in sum(found, []) + [trust]]
    table.append({"structure": "shared", "start": "trust, ridge regression", "held_out": ridge})

    views = fit_views(data.g, data.z, data.y, len(present))
    predicted = views.predict(data.g, data.z, data.y)
    unnamed = none = np.zeros(len(present), dtype=bool)
    without = noise_free_responsibilities(predicted, data.y)
    if winner is trust:
        r, interval, known = without
    else:
        if part is not data:
            best = winner.best
            r = posterior(data.g, data.y, best.responsibilities.T @ part.g, best.transition, best.temperature, best.similar)
            winner.best, trace = run_em(data, r, winner.structure, best.temperature)
            winner.trace += trace
        r = order_by_label(winner.best.responsibilities, data.bounds)
        counts = expected_counts(r, data.bounds)
        renamed = renamed_rates(counts) if few else []
        wrong = data.wrong_probability(r)
        interval, known = rate_bounds(winner.best.probabilities, wrong, winner.rate_std, renamed)
        clean = interval[0] < _NONE and wrong.mean() < _LITTLE
        unnamed = unnamed_classes(counts)
        if unnamed.any():  # their samples may be right
            r, moved = keep_labels_of(unnamed, r, predicted, data.y)
            interval = max(interval[0] - moved, 0.0), interval[1]
            known = interval[1] - interval[0] <= KNOWN_WIDTH
        if clean or (few and names_tie(counts)) or neighbours_object(x[order[rows]], data.y[rows], r[rows], known):
            winner, r, unnamed = trust, doubtful_labels(predicted, data.y), none
            interval, known = (0.0, max(interval[1], without[1][1])), False
    back = np.empty((2, *r.shape), dtype=np.float32)
    back[:, order] = r, predicted
    model = make_model(back[0], y, present, num_classes, winner)
    model.candidates, model.rate_interval, model.rate_known = table, interval, known
    model.out_of_sample, model.unnamed = all_classes(back[1], present, num_classes), present[unnamed].tolist()
    if winner is trust and not known:
        model.rate_std = (interval[1] - interval[0]) / 4
    return model, FittedViews(axes, rank, views, None if winner is trust else winner.best)


def checked(features: Values, labels: Values, num_classes: int) -> Tuple[np.ndarray, np.ndarray]:
    """Features and labels as arrays, or one clear error."""
    x, y = (np.asarray(cast("Tensor", v).detach().cpu() if hasattr(v, "detach") else v) for v in (features, labels))
    if x.dtype.kind not in "fiub":
        raise UserError(f"features are {x.dtype}: expected numbers")
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float32)  # whole numbers and half precision: neither has means and norms
    if x.ndim != 2 or y.shape != x.shape[:1] or len(y) == 0:
        raise UserError(f"features {x.shape} and labels {y.shape} do not fit: expected (N, D) and (N,) with N > 0")
    if not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"labels are {y.dtype}: expected integers 0..{num_classes - 1}")
    if y.min() < 0 or y.max() >= num_classes:
        raise UserError(f"labels run from {y.min()} to {y.max()}: expected 0..{num_classes - 1}")
    with np.errstate(over="ignore"):
        bad = np.count_nonzero(~np.isfinite(x if x.dtype == np.float32 else x.astype(np.float32)).all(1))
    if bad:
        raise UserError(f"{bad} of {len(x)} feature rows are not finite: expected finite numbers, check the backbone")
    return x, y.astype(np.int64)


def _normalised(r: np.ndarray) -> np.ndarray:
    r = r.astype(np.float32) + np.float32(1e-6)
    return r / r.sum(1, keepdims=True)
