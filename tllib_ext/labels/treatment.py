r"""Treatments of the given labels in front of any method: which labels to learn, and with which weights.

* ``given``: all labels as they are;
* ``small-loss``: the share ``rate`` of the labels with the largest loss of a cross-validated classifier is left out;
* ``confident``: `confident learning <https://arxiv.org/abs/1911.00068>`_: labels that look wrong are left out, as many as the
  confident joint says;
* ``label-model``: labels corrected by :func:`~tllib_ext.labels.transition.estimate_labels`, weighted by their confidence.

Confident learning counts, with out-of-sample probabilities :math:`\hat p` and thresholds :math:`t_j` = mean
:math:`\hat p_j` of the images given j, each image once at (given label, most probable class among those with
:math:`\hat p_k \ge t_k`); the counts, rescaled to the frequencies of the given labels, say how many images given j are of class
k. As many are left out, those with the largest :math:`\hat p_k - \hat p_j`, unless the given label is the most probable.
"""

from typing import Callable, Dict, NamedTuple, Optional

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from tllib_ext.errors import UserError
from tllib_ext.labels.cached import estimate_once

__all__ = ["TREATMENTS", "TreatedLabels", "treat_labels", "out_of_sample", "confident_joint", "confident_issues"]


class TreatedLabels(NamedTuple):
    r"""Labels to learn.

    Shape:
        - labels: :math:`(N, )`; weights: :math:`(N, )`, 0 for a label that is left out; rate: expected share that is wrong
    """

    labels: np.ndarray
    weights: np.ndarray
    rate: float

    def summary(self, given: np.ndarray) -> str:
        """A line for a log."""
        changed, dropped = np.mean((self.labels != given) & (self.weights > 0)), np.mean(self.weights == 0)
        return f"labels: {changed:.1%} changed, {dropped:.1%} left out, {self.rate:.1%} expected wrong after that"


def treat_labels(
    by: str, features: np.ndarray, given: np.ndarray, num_classes: int, rate: float = 0.0, seed: int = 0
) -> TreatedLabels:
    r"""The labels to learn instead of the given ones.

    Args:
        by (str): a name in :data:`TREATMENTS`
        features (numpy.ndarray): :math:`(N, D)`
        given (numpy.ndarray): :math:`(N, )` labels in 0..K-1, possibly wrong
        num_classes (int): K
        rate (float): share of wrong labels, for ``small-loss``
        seed (int): of folds and clusters

    Examples::

        >>> true = np.repeat([0, 1], 30)
        >>> features = np.eye(2)[true] + 0.1 * np.random.default_rng(0).normal(size=(60, 2))
        >>> given = np.where(np.arange(60) % 10 == 0, 1 - true, true)
        >>> treat_labels("confident", features, given, 2).weights.nonzero()[0].tolist() == (given == true).nonzero()[0].tolist()
        True
    """
    if by not in TREATMENTS:
        raise UserError(f"labels_by={by!r}: expected {', '.join(TREATMENTS)}")
    treat = TREATMENTS[by]
    ones = np.ones(len(given))
    return TreatedLabels(given, ones, rate) if treat is None else treat(features, given, num_classes, rate, seed)


def out_of_sample(features: np.ndarray, given: np.ndarray, num_classes: int, seed: int = 0, folds: int = 5) -> np.ndarray:
    """Probabilities of every image by a logistic regression on the other folds; unit features, 64 principal components."""
    counts = np.bincount(given, minlength=num_classes)
    folds = min(folds, int(counts[counts > 0].min()))
    if folds < 2 or (counts > 0).sum() < 2:
        raise UserError(f"the given labels have {(counts > 0).sum()} classes, the rarest {counts[counts > 0].min()} times: "
                        f"cross-validation needs 2 of each")  # fmt: skip
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    flat = PCA(min(64, *unit.shape), random_state=seed).fit_transform(unit)
    model = LogisticRegression(C=10.0, max_iter=500)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    probs = np.zeros((len(given), num_classes))
    probs[:, np.unique(given)] = cross_val_predict(model, flat, given, cv=split, method="predict_proba")
    return probs


def confident_joint(probs: np.ndarray, given: np.ndarray) -> np.ndarray:
    r"""Estimated number of images by given label (row) and true class (column), :math:`(K, K)`; row sums are the given counts."""
    k, counts = probs.shape[1], np.bincount(given, minlength=probs.shape[1])
    limits = np.array([probs[given == j, j].mean() if counts[j] else np.inf for j in range(k)])
    sure = probs >= limits - 1e-6
    best = np.where(sure, probs, -1.0).argmax(axis=1)
    joint = np.zeros((k, k))
    np.add.at(joint, (given[sure.any(axis=1)], best[sure.any(axis=1)]), 1)
    np.fill_diagonal(joint, np.maximum(joint.diagonal(), 1))
    return joint * (counts / joint.sum(axis=1))[:, None]


def confident_issues(probs: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Which given labels look wrong, :math:`(N, )` bool: pruning by noise rate; one image of each class stays."""
    joint, rows = np.round(confident_joint(probs, given)).astype(int), np.arange(len(given))
    own, flagged = probs[rows, given], np.zeros(len(given), dtype=bool)
    for j in np.unique(given):
        members = rows[given == j]
        for k in np.flatnonzero(joint[j] * (np.arange(len(joint)) != j)):
            order = np.argsort(own[members] - probs[members, k], kind="stable")
            flagged[members[order[: joint[j, k]]]] = True
        flagged[members] &= own[members] + 1e-6 < probs[members].max(axis=1)
        if flagged[members].all():
            flagged[members[own[members].argmax()]] = False
    return flagged


def _small_loss(features: np.ndarray, given: np.ndarray, k: int, rate: float, seed: int) -> TreatedLabels:
    own = out_of_sample(features, given, k, seed)[np.arange(len(given)), given]
    weights = np.ones(len(given))
    weights[np.argsort(own, kind="stable")[: int(rate * len(given))]] = 0
    return TreatedLabels(given, weights, 0.0)


def _confident(features: np.ndarray, given: np.ndarray, k: int, rate: float, seed: int) -> TreatedLabels:
    issues = confident_issues(out_of_sample(features, given, k, seed), given)
    return TreatedLabels(given, np.where(issues, 0.0, 1.0), 0.0)


def _label_model(features: np.ndarray, given: np.ndarray, k: int, rate: float, seed: int) -> TreatedLabels:
    model = estimate_once(features, given, k, seed)
    return TreatedLabels(model.corrected, model.confidence.astype(float), float(1 - model.confidence.mean()))


Treatment = Callable[[np.ndarray, np.ndarray, int, float, int], TreatedLabels]
#: treatments by name.
TREATMENTS: Dict[str, Optional[Treatment]] = {
    "given": None, "small-loss": _small_loss, "confident": _confident, "label-model": _label_model,
}  # fmt: skip
