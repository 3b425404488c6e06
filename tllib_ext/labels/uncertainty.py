"""What the features cannot tell: bounds of the noise rate, labels that are kept although they are doubtful, and classes
whose samples cannot be named."""

from typing import Sequence, Tuple

import numpy as np
from scipy.special import xlogy
from sklearn.neighbors import NearestNeighbors

__all__ = ["KNOWN_WIDTH", "doubtful_labels", "keep_labels_of", "neighbours_object", "rate_bounds", "unnamed_classes"]

#: an interval of the rate that is wider is not known.
KNOWN_WIDTH = 0.2
_NEIGHBOURS = 10


def rate_bounds(p: np.ndarray, wrong: np.ndarray, std: float, renamed: Sequence[float] = ()) -> Tuple[Tuple[float, float], bool]:
    r"""A 95 % interval of the share of wrong labels, and whether it is narrow.

    A label that was mistaken because the image is hard lies where the classes overlap, and there it looks like a right
    label of an overlapping class. The share of samples that features leave undecided, :math:`u = 1 - E \max_k p_{ik}`,
    bounds what can hide there. Wrong labels found among the clear half of the samples as often as elsewhere
    (:math:`d = 0`) speak for noise that does not depend on the image; none among them (:math:`d = 1`) for noise, if
    there is any, that does, and which also moves the classifier that looks for it. The interval is
    :math:`[\rho - 2 s - 0.2 u,\; \rho + 2 s + (0.7 + 1.3 d) u]`; it reaches at least to 3/N, since none wrong among N
    labels is likely up to that rate, and to the rate, plus 2 s, of every plausible reading with other names of the classes.

    Args:
        p (numpy.ndarray): probabilities of the classes from the features alone
        wrong (numpy.ndarray): probability that each label is wrong; its mean is :math:`\rho`
        std (float): standard error :math:`s` of the rate within the model
        renamed (sequence of float, optional): rates of other readings
            (:func:`~tllib_ext.labels.initialisation.renamed_rates`). Default: none

    Shape:
        - p: :math:`(N, K)`, wrong: :math:`(N,)`

    Examples::

        >>> rate_bounds(np.eye(2)[[0, 1] * 10], np.array([0, 1.0] * 10), 0.05)
        ((0.4, 0.6), True)
    """
    clear = p.max(1)
    rate, undecided = float(wrong.mean()), float(1 - clear.mean())
    half = np.argsort(-clear, kind="stable")[: max(len(p) // 2, 1)]
    dependence = 1 - min(float(wrong[half].mean()) / rate, 1) if rate > 0 else 1.0
    low = max(rate - 2 * std - 0.2 * undecided, 0.0)
    high = max(rate + 2 * std + (0.7 + 1.3 * dependence) * undecided, 3 / len(p))
    high = min(max(high, *(other + 2 * std for other in (0.0, *renamed))), 1.0)
    return (low, high), high - low <= KNOWN_WIDTH


def doubtful_labels(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Responsibilities that keep every label and say how doubtful it is.

    The given label has :math:`(1 + c_i)/2`, where :math:`c_i = p_{i \tilde y_i} / \max_k p_{ik}`, halfway between two
    readings: the label is right, and the features decide. The other classes share the rest as in p.

    Examples::

        >>> doubtful_labels(np.array([[0.8, 0.2], [0.8, 0.2]]), np.array([0, 1])).round(3).tolist()
        [[1.0, 0.0], [0.375, 0.625]]
    """
    rows = np.arange(len(y))
    own = (1 + p[rows, y] / p.max(1)) / 2
    r = p.astype(np.float32)
    r[rows, y] = 0
    r *= ((1 - own) / np.maximum(r.sum(1), 1e-12))[:, None]
    r[rows, y] = own
    return r


def unnamed_classes(counts: np.ndarray) -> np.ndarray:
    r"""Classes that a noise model calls by a name which their labels contradict, :math:`(K,)` bool.

    Right labels are assumed to outnumber those of any one wrong class. A model that finds one class twice, and has no room
    for a rare one, breaks this rule: a part of a frequent class has the name of the rare one, or a chain of classes is
    named one further. The evidence for or against a name is :math:`n\,\mathrm{KL}` of the shares of the right and of the
    most frequent wrong label, n being the number of both, and 1/2. If both are equally probable, the evidence against (0 where
    the right label is ahead) has mean 1/4 and variance 5/16. If its sum over the classes exceeds that mean by 1.64 standard
    deviations (a one-sided test at 5 %), names are kept only by the classes that have 2 nats in favour of theirs.

    Args:
        counts (numpy.ndarray): expected number of samples by class (row) and label (column), :math:`(K, K)`

    Examples::

        >>> unnamed_classes(np.array([[60.0, 40.0, 0.0], [35.0, 30.0, 0.0], [0.0, 0.0, 9.0]])).tolist()
        [False, False, False]
        >>> unnamed_classes(np.array([[60.0, 40.0, 0.0], [60.0, 20.0, 0.0], [0.0, 0.0, 9.0]])).tolist()
        [False, True, False]
    """
    own, size = np.diag(counts), len(counts)
    other = (counts - np.diag(own)).max(1)
    both = own + other
    evidence = np.copysign(xlogy(own, own) + xlogy(other, other) - xlogy(both, both / 2), own - other)
    broken = -evidence[evidence < 0].sum() > size / 4 + 1.64 * np.sqrt(5 * size / 16)
    return (evidence < 2) & broken


def keep_labels_of(unnamed: np.ndarray, r: np.ndarray, p: np.ndarray, y: np.ndarray) -> Tuple[np.ndarray, float]:
    """Responsibilities r where what belongs to ``unnamed`` classes keeps its label (:func:`doubtful_labels`), and its share.

    Shape:
        - unnamed: :math:`(K,)` bool; r, p: :math:`(N, K)`; y: :math:`(N,)`
    """
    rows = np.arange(len(y))
    named = r * ~unnamed
    named[rows, y] = r[rows, y]
    moved = 1 - named.sum(1)
    return named + moved[:, None] * doubtful_labels(p, y), float(moved.mean())


def neighbours_object(x: np.ndarray, y: np.ndarray, r: np.ndarray, known: bool = True) -> bool:
    r"""Whether nearest neighbours favour the given labels over those that a noise model would replace them by.

    A right correction replaces a label that is rarer around the sample than the new one. That needs no prototypes, so it
    shows a model that does not fit the features (classes that differ by the length of the features, or by more
    than one mean each). Of the 10 neighbours of each changed sample, those with the given and those with the new label are
    counted; a label may be counted by 10 samples. Neighbours object if the given ones are ahead by 1.64 standard deviations;
    where the rate is not ``known``, if they are not behind.

    Shape:
        - x: :math:`(N, D)` features; y: :math:`(N,)` given labels; r: :math:`(N, K)` responsibilities

    Examples::

        >>> x, y = np.repeat([[0.0], [1.0]], 30, axis=0) + 0.001 * np.arange(60)[:, None], np.repeat([0, 1], 30)
        >>> given = np.where(np.arange(60) % 10 == 0, 1 - y, y)
        >>> neighbours_object(x, given, np.eye(2)[y]), neighbours_object(x, given, np.eye(2)[1 - y])
        (False, True)
    """
    rows, new = np.arange(len(y)), r.argmax(1)
    changed = rows[r[rows, new] > r[rows, y]]
    number = min(_NEIGHBOURS, len(y) - 1)
    if not len(changed):
        return False
    x = x - x.mean(0, dtype=np.float64)
    near = NearestNeighbors(n_neighbors=number + 1).fit(x).kneighbors(x[changed], return_distance=False)
    labels = np.where(near == changed[:, None], -1, y[near])  # not the sample itself
    given, other = (np.count_nonzero(labels == label[changed, None]) for label in (y, new))
    return bool(given - other > 1.64 * np.sqrt(number * (given + other)) if known else given >= other)
