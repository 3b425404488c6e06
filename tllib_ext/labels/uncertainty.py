"""What the features cannot tell: bounds of the noise rate, and labels that are kept although they are doubtful."""

from typing import Sequence, Tuple

import numpy as np

__all__ = ["doubtful_labels", "rate_bounds"]

#: an interval of the rate that is wider is not known.
KNOWN_WIDTH = 0.2


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
