r"""Threshold-free metrics of the score, curves over all thresholds, and the confusion matrix.

Conventions, the same in every function: ``labels`` are ``0..K`` with ``split.unknown`` = K for every target-private
image, ``closed_pred`` is the argmax over the K source classes, a **high score means unknown**, and a threshold
:math:`t` predicts unknown where ``score > t``. ROC and precision-recall curves are scikit-learn's.

scikit-learn gets the ranks of the scores: the areas depend on the order alone, and infinite scores (the logarithm of
zero) are allowed.
"""

from typing import Dict, NamedTuple, Optional, Tuple

import numpy as np

from tllib_ext.split import LabelSplit

__all__ = ["ThresholdCurve", "confusion", "detection", "oscr", "threshold_curve"]


class ThresholdCurve(NamedTuple):
    """Metrics at increasing thresholds: arrays of one length, None for a metric that is not defined on these labels."""

    threshold: np.ndarray
    os: np.ndarray
    os_star: Optional[np.ndarray]
    unk: Optional[np.ndarray]
    h_score: Optional[np.ndarray]


def confusion(labels: np.ndarray, predicted: np.ndarray, split: LabelSplit) -> np.ndarray:
    r"""Counts :math:`M_{ij}` of images with label i that were labelled j, both in the order of ``split.label_names``.

    Shape:
        - labels, predicted: :math:`(N, )`, integers in 0..K
        - Outputs: :math:`(K+1, K+1)`

    Examples::

        >>> split = LabelSplit(["ant", "bee"], [], ["cat"])
        >>> confusion(np.array([0, 0, 2]), np.array([0, 2, 2]), split).tolist()
        [[1, 0, 1], [0, 0, 0], [0, 0, 1]]
    """
    width = len(split.label_names)
    return np.bincount(labels * width + predicted, minlength=width * width).reshape(width, width)


def detection(labels: np.ndarray, score: np.ndarray, split: LabelSplit) -> Dict[str, Optional[float]]:
    r"""How well the score separates unknown from known images; all values are None unless there are both.

    Outputs: a dict of

        - auroc: area under the ROC curve, unknown positive; the chance that an unknown image scores above a known
          one, ties counted half
        - aupr_unknown: average precision, unknown positive
        - aupr_known: average precision of the negated score, known positive
        - fpr_known_at_95_unknown_recall: share of the known images called unknown at the highest threshold that
          finds 95 % of the unknown ones

    Examples::

        >>> split = LabelSplit(["ant", "bee"], [], ["cat"])
        >>> detection(np.array([0, 1, 2, 2]), np.array([0.1, 0.6, 0.5, 0.9]), split)["auroc"]
        0.75
    """
    names = ("auroc", "aupr_unknown", "aupr_known", "fpr_known_at_95_unknown_recall")
    unknown = labels == split.unknown
    if not _both(unknown):
        return dict.fromkeys(names)
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    rank = np.unique(score, return_inverse=True)[1]
    fpr, recall, _ = roc_curve(unknown, rank, drop_intermediate=False)
    precisions = average_precision_score(unknown, rank), average_precision_score(~unknown, -rank)
    values = (roc_auc_score(unknown, rank), *precisions, fpr[np.argmax(recall >= 0.95)])
    return {name: float(value) for name, value in zip(names, values)}


def oscr(labels: np.ndarray, closed_pred: np.ndarray, score: np.ndarray, split: LabelSplit) -> Optional[float]:
    r"""Open-set classification rate: area under :math:`\mathrm{CCR}` over :math:`\mathrm{FPR}`,

    .. math::
        \mathrm{CCR}(t) = \frac{|\{i : y_i < K, \hat c_i = y_i, s_i \le t\}|}{|\{i : y_i < K\}|}, \qquad
        \mathrm{FPR}(t) = \frac{|\{i : y_i = K, s_i \le t\}|}{|\{i : y_i = K\}|}.

    An image counts as one image, not by class. With a perfect closed-set classifier it equals the AUROC.
    Returns None unless there are known and unknown images.

    Examples::

        >>> split = LabelSplit(["ant", "bee"], [], ["cat"])
        >>> oscr(np.array([0, 1, 2, 2]), np.array([0, 0, 1, 1]), np.array([0.1, 0.2, 0.5, 0.9]), split)
        0.5
    """
    unknown = labels == split.unknown
    if not _both(unknown):
        return None
    from sklearn.metrics import auc

    order, last = _distinct(score)
    right = (closed_pred == labels) & ~unknown
    accepted_right = np.cumsum(right[order])[last] / np.count_nonzero(~unknown)
    accepted_unknown = np.cumsum(unknown[order])[last] / np.count_nonzero(unknown)
    return float(auc(np.r_[0.0, accepted_unknown], np.r_[0.0, accepted_right]))


def threshold_curve(
    labels: np.ndarray, closed_pred: np.ndarray, score: np.ndarray, split: LabelSplit, points: Optional[int] = 200
) -> ThresholdCurve:
    r"""OS, OS*, UNK and H-score of the predictions ``score > t``, for thresholds from "all unknown" to "all known".

    Args:
        points (int, optional): maximal number of thresholds, evenly spaced over the ranks of the distinct scores (at
            least 2, the two ends); None gives every threshold at which a prediction changes

    Examples::

        >>> split = LabelSplit(["ant", "bee"], [], ["cat"])
        >>> c = threshold_curve(np.array([0, 1, 2]), np.array([0, 1, 1]), np.array([0.1, 0.3, 0.9]), split)
        >>> [round(float(v), 3) for v in c.h_score]
        [0.0, 0.667, 1.0, 0.0]
    """
    order, last = _distinct(score)
    counts = np.bincount(labels, minlength=len(split.label_names))
    num_unknown = int(counts[split.unknown])
    present = int(np.count_nonzero(counts[list(split.shared_labels)]))

    # An accepted, rightly labelled image of class k adds 1 / (|C| n_k) to OS*, so one running sum gives the class mean.
    known_right = (closed_pred == labels) & (labels != split.unknown)
    weight = np.where(known_right, 1 / np.maximum(counts * max(present, 1), 1)[labels], 0.0)
    os_star = np.r_[0.0, np.cumsum(weight[order])[last]]
    unk = np.r_[1.0, 1 - np.cumsum(labels[order] == split.unknown)[last] / max(num_unknown, 1)]
    values = score[order][last]
    threshold = np.r_[np.nextafter(values[0], -np.inf), values]

    start = int(np.isneginf(values[0]))  # no threshold lies below a score of -inf
    keep = np.arange(start, len(threshold))
    if points is not None and points < len(keep):
        keep = keep[np.linspace(0, len(keep) - 1, max(points, 2)).round().astype(int)]
    threshold, os_star, unk = threshold[keep], os_star[keep], unk[keep]
    total = os_star + unk
    h_score = np.divide(2 * os_star * unk, total, out=np.zeros_like(total), where=total > 0)
    if not present:
        return ThresholdCurve(threshold, unk, None, unk, None)
    if not num_unknown:
        return ThresholdCurve(threshold, os_star, os_star, None, None)
    return ThresholdCurve(threshold, (present * os_star + unk) / (present + 1), os_star, unk, h_score)


def _both(unknown: np.ndarray) -> bool:
    """Whether there are known and unknown images."""
    return bool(unknown.any() and not unknown.all())


def _distinct(score: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """The order of increasing scores, and the position in it of the last image of every distinct score."""
    order = np.argsort(score, kind="stable")
    ordered = score[order]
    return order, np.flatnonzero(np.r_[ordered[1:] != ordered[:-1], True])
