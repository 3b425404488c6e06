r"""Further metrics that other papers report, beside those of :class:`~tllib_ext.evaluation.openset.OpenSetReport`.

The conventions are those of :mod:`tllib_ext.evaluation.curves`: a high score means unknown, and a threshold accepts an
image as known where ``score <= t``.
"""

from typing import Dict, List, Optional, cast

import numpy as np

from tllib_ext.evaluation.arrays import class_labels, same_length, scores, to_numpy
from tllib_ext.evaluation.curves import confusion, oscr, threshold_curve
from tllib_ext.evaluation.discovery import discovery
from tllib_ext.split import LabelSplit
from tllib_ext.typing import Values

__all__ = ["FURTHER", "further_metrics", "bootstrap"]

#: metric -> its definition in words; the order of every table.
FURTHER: Dict[str, str] = {
    "h_score_instance": "H-score with the share of the known images labelled right in place of OS*",
    "oracle_h_score": "H-score at the threshold that is best on the target labels: not a result",
    "closed_instance_accuracy": "share of the known images labelled right with rejection switched off",
    "ucr": "UCR: OSCR if there are unknown images, else closed_instance_accuracy",
    "fpr_unknown_at_95_known_recall": "share of the unknown images accepted where 95 % of the known are accepted",
    "detection_accuracy": "largest mean of the known images accepted and the unknown images rejected, over all thresholds",
    "ece_known": "expected calibration error of the largest probability on the known images, 15 bins",
    "confidence_unknown": "mean of the largest probability on the unknown images",
    "nmi_unknown": "NMI of the unknown images' classes and their clusters (k-means on unit features)",
    "h3_score": "H3-score: harmonic mean of OS*, UNK and nmi_unknown",
    "novel_accuracy": "share of the unknown images whose cluster is matched to their class (Hungarian)",
}
#: metrics with an interval: ``<name>_low`` and ``<name>_high``
INTERVALS = ("os", "os_star", "unk", "h_score")


def further_metrics(
    labels: Values, predicted: Values, score: Values, split: LabelSplit, closed_pred: Values,
    confidence: Optional[Values] = None, features: Optional[Values] = None, private: Optional[Values] = None, seed: int = 0,
) -> Dict[str, Optional[float]]:  # fmt: skip
    r"""Every metric of :data:`FURTHER`, None where it is not defined, and bootstrap intervals.

    Args:
        split (LabelSplit): the label sets
        seed (int): of the bootstrap and of k-means

    Shape:
        - labels, predicted, score: as for :func:`~tllib_ext.evaluation.openset.evaluate`; closed_pred: :math:`(N, )`,
          the most probable source class
        - confidence: :math:`(N, )` its probability; features: :math:`(N, D)`
        - private: :math:`(N, )` integers, the true class of every unknown image; others are ignored

    Examples::

        >>> split = LabelSplit(["ant", "bee"], [], ["cat"])
        >>> found = further_metrics([0, 1, 2, 2], [0, 2, 2, 1], [0.1, 0.6, 0.9, 0.5], split, [0, 1, 1, 1])
        >>> found["h_score_instance"], found["closed_instance_accuracy"], found["detection_accuracy"]
        (0.5, 1.0, 0.75)
    """
    y = class_labels("labels", labels, split.label_names)
    given = class_labels("predicted", predicted, split.label_names)
    closed = class_labels("closed_pred", closed_pred, split.source_classes)
    score = scores(score)
    same_length({"labels": y, "predicted": given, "closed_pred": closed, "score": score})
    known, found = y != split.unknown, cast(Dict[str, Optional[float]], dict.fromkeys(FURTHER))
    found.update(bootstrap(y, given, split, seed))
    if known.any():
        found["closed_instance_accuracy"] = found["ucr"] = float((closed == y)[known].mean())
    if known.any() and not known.all():
        right, unk = float((given == y)[known].mean()), float((given == y)[~known].mean())
        curve = threshold_curve(y, closed, score, split, points=None).h_score
        found["h_score_instance"] = harmonic(right, unk)
        found["oracle_h_score"] = None if curve is None else float(curve.max())
        found["ucr"] = oscr(y, closed, score, split)
        found.update(_thresholds(known, score))
    if confidence is not None:
        top = to_numpy(confidence).astype(np.float64)
        found["ece_known"] = calibration_error(top[known], (closed == y)[known]) if known.any() else None
        found["confidence_unknown"] = None if known.all() else float(top[~known].mean())
    if features is not None and private is not None and not known.all():
        nmi, found["novel_accuracy"] = discovery(to_numpy(features)[~known], to_numpy(private)[~known], seed)
        found["nmi_unknown"] = nmi
        matrix = confusion(y, given, split)
        recall = [matrix[k, k] / matrix[k].sum() for k in split.shared_labels if matrix[k].any()]
        found["h3_score"] = harmonic(float(np.mean(recall)), float((given == y)[~known].mean()), nmi) if recall else None
    return found


def harmonic(*values: float) -> float:
    """The harmonic mean; 0 if any value is 0."""
    return len(values) / sum(1 / value for value in values) if all(values) else 0.0


def _thresholds(known: np.ndarray, score: np.ndarray) -> Dict[str, float]:
    mine, theirs = np.sort(score[known]), np.sort(score[~known])
    # The lowest threshold that accepts 95 % of the known images.
    cut = mine[int(np.ceil(0.95 * len(mine) - 1e-9)) - 1]
    steps = np.r_[-np.inf, np.unique(score)]
    accepted = np.searchsorted(mine, steps, "right") / len(mine)
    rejected = 1 - np.searchsorted(theirs, steps, "right") / len(theirs)
    return {
        "fpr_unknown_at_95_known_recall": float((theirs <= cut).mean()),
        "detection_accuracy": float(((accepted + rejected) / 2).max()),
    }


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    r"""Expected calibration error, :math:`\sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|` over bins of equal width.

    Examples::

        >>> round(calibration_error(np.array([0.9, 0.9, 0.6]), np.array([True, False, True])), 4)
        0.4
    """
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, right, bins) - np.bincount(place, confidence, bins)
    return float(np.abs(gaps).sum() / len(confidence))


def bootstrap(labels: np.ndarray, predicted: np.ndarray, split: LabelSplit, seed: int = 0, draws: int = 1000) -> Dict[str, float]:
    """95 % intervals of OS, OS*, UNK and H-score over images: percentiles of samples with replacement.

    A sample of N images is one multinomial draw over the cells of the confusion matrix; a class that a sample has no
    image of is left out of that sample's means.
    """
    matrix = confusion(labels, predicted, split)
    cells = np.flatnonzero(matrix)
    shares = matrix.ravel()[cells] / len(labels)
    counts = np.random.RandomState(seed).multinomial(len(labels), shares, size=draws)
    rows, right = cells // len(matrix), cells // len(matrix) == cells % len(matrix)
    place = np.eye(len(matrix))[rows]
    images = counts @ place
    recall = np.divide((counts * right) @ place, images, out=np.zeros_like(images), where=images > 0)
    shared, unk = _mean(recall, images > 0, list(split.shared_labels)), _mean(recall, images > 0, [split.unknown])
    both = _mean(recall, images > 0, [*split.shared_labels, split.unknown])
    h_score = 2 * shared * unk / np.where(shared + unk == 0, 1.0, shared + unk)
    found: Dict[str, float] = {}
    for name, drawn in zip(INTERVALS, (both, shared, unk, h_score)):
        if not np.isnan(drawn).all():
            low, high = np.nanpercentile(drawn, [2.5, 97.5])
            found.update({f"{name}_low": float(low), f"{name}_high": float(high)})
    return found


def _mean(recall: np.ndarray, present: np.ndarray, labels: List[int]) -> np.ndarray:
    """The mean of every row over those of ``labels`` that are present, NaN without any."""
    number = present[:, labels].sum(axis=1)
    return np.where(number > 0, recall[:, labels].sum(axis=1) / np.maximum(number, 1), np.nan)
