r"""Kinds of label noise that depend on the image: functions from features to a row of label probabilities per sample.

``part_dependent`` is `Part-dependent Label Noise (NeurIPS 2020) <https://arxiv.org/abs/2006.07836>`_, ``pmd1`` to
``pmd3`` are the polynomial margin diminishing noises of `Progressive Label Correction (ICLR 2021)
<https://arxiv.org/abs/2103.07756>`_. ``runner_up`` and ``runner_up_hard`` give an image the wrong class that it resembles
most. The last five need class probabilities :math:`\eta`; they come from a logistic regression on the true labels, in
sample as in the published code.
"""

from typing import Callable

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.noises import Noise, NoiseSamples

__all__ = ["class_probabilities", "part_dependent", "pmd1", "pmd2", "pmd3", "runner_up", "runner_up_hard"]

#: inverse regularisation of the classifier on centred unit features: it is right on 92 to 100 % of its own samples
#: (CIFAR-10, Caltech-101 and Office-31 features), so that every usual rate can be reached, and not certain of all of them
INVERSE_REGULARISATION = 10.0
#: the classifier is fitted on at most this many samples
FIT_LIMIT = 20_000


def _of_features(noise: Noise) -> Noise:
    """Mark a noise as one that depends on the instance through its features."""
    vars(noise).update(per_sample=True, uses_features=True)
    return noise


def class_probabilities(samples: NoiseSamples, num_classes: int) -> np.ndarray:
    r""":math:`\eta`, :math:`(N, K)` probabilities of a logistic regression on the true labels, in sample.

    The features are centred and scaled to unit length first: the result does not depend on their scale.
    """
    from sklearn.linear_model import LogisticRegression

    x = np.asarray(samples.features, dtype=np.float64)
    x = x - x.mean(axis=0)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    chosen = np.arange(len(x))
    if len(x) > FIT_LIMIT:
        chosen = samples.random_state.permutation(len(x))[:FIT_LIMIT]
    model = LogisticRegression(C=INVERSE_REGULARISATION, tol=1e-3, max_iter=500).fit(x[chosen], samples.labels[chosen])
    probabilities = np.zeros((len(x), num_classes))
    probabilities[:, model.classes_] = model.predict_proba(x)
    return probabilities


@_of_features
def part_dependent(rate: float, num_classes: int, samples: NoiseSamples, *, temperature: float = 1.0) -> np.ndarray:
    r"""Xia et al. 2020: the wrong label is drawn by a random projection of the features, one projection per class.

    .. math::
        q_i \sim \mathcal N(\rho, 0.1^2)\big|_{[0, 1]}, \quad W_k \sim \mathcal N(0, 1)^{m \times K}, \quad
        P_i = (1 - q_i)\, e_{y_i} + q_i\, \mathrm{softmax}_{j \ne y_i}\big(x_i^T W_{y_i} / T\big)

    The expected rate is the mean of :math:`q`, slightly above :math:`\rho` where that is small. The scale of the features
    decides how the wrong labels spread: unscaled ones, as in the published code, give every image one wrong label of its
    own; a large temperature gives symmetric noise.
    """
    from scipy.stats import truncnorm

    if not temperature > 0:
        raise UserError(f"temperature {temperature}: expected a positive number")
    clean, rng = samples.labels, samples.random_state
    rows = np.eye(num_classes)[clean]
    if rate == 0:
        return rows
    low, high = (0 - rate) / 0.1, (1 - rate) / 0.1
    q = truncnorm.rvs(low, high, loc=rate, scale=0.1, size=len(clean), random_state=rng)
    x = np.asarray(samples.features, dtype=np.float64)
    for k in range(num_classes):  # class by class: the whole W would be K m K numbers
        projection = rng.standard_normal((x.shape[1], num_classes))
        members = np.flatnonzero(clean == k)
        flips = x[members] @ projection / temperature
        flips[:, k] = -np.inf
        flips = np.exp(flips - flips.max(axis=1, keepdims=True))
        share = q[members, None]
        rows[members] = (1 - share) * rows[members] + share * flips / flips.sum(axis=1, keepdims=True)
    return rows


def _pmd(rate: float, num_classes: int, samples: NoiseSamples, kept: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    r"""Rows with the first class u with probability kept(g) / f and the second class s otherwise, f by bisection."""
    clean, place = samples.labels, np.arange(len(samples.labels))
    if rate == 0:
        return np.eye(num_classes)[clean]
    eta = class_probabilities(samples, num_classes)
    second, first = np.argsort(eta, axis=1, kind="stable")[:, -2:].T
    keep = kept(eta[place, first] - eta[place, second])

    def rows(factor: float) -> np.ndarray:
        matrix, share = np.zeros_like(eta), np.minimum(keep / factor, 1.0)
        matrix[place, first], matrix[place, second] = share, 1.0 - share
        return matrix

    def reached(factor: float) -> float:
        return float(1.0 - rows(factor)[place, clean].mean())

    low, high = 1e-6, 1e6
    if not reached(low) <= rate <= reached(high):
        raise UserError(
            f"rate {rate}: this noise reaches {reached(low):.3f} to {reached(high):.3f} here, because its base is a"
            " classifier's first class, which is wrong that often; choose a rate in between, or the noise runner_up"
        )
    for _ in range(100):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if reached(middle) < rate else (low, middle)
    return rows(high)


@_of_features
def pmd1(rate: float, num_classes: int, samples: NoiseSamples) -> np.ndarray:
    r"""Type I: :math:`\tau = 1/2 - g^2/2`, g the margin between the first and the second class."""
    return _pmd(rate, num_classes, samples, lambda g: np.maximum(0.5 + g**2 / 2, 0.5))


@_of_features
def pmd2(rate: float, num_classes: int, samples: NoiseSamples) -> np.ndarray:
    r"""Type II: :math:`\tau = 1 - g^3`."""
    return _pmd(rate, num_classes, samples, lambda g: g**3)


@_of_features
def pmd3(rate: float, num_classes: int, samples: NoiseSamples) -> np.ndarray:
    r"""Type III: :math:`\tau = 1 - (g^3 + g^2 + g)/3`."""
    return _pmd(rate, num_classes, samples, lambda g: (g**3 + g**2 + g) / 3)


@_of_features
def runner_up(rate: float, num_classes: int, samples: NoiseSamples) -> np.ndarray:
    """Every image has, with probability ``rate``, the label of its most probable wrong class."""
    eta = class_probabilities(samples, num_classes)
    return _to_runner_up(np.full(len(eta), rate), eta, samples.labels)


@_of_features
def runner_up_hard(rate: float, num_classes: int, samples: NoiseSamples) -> np.ndarray:
    """The ``round(rate * N)`` images whose true class is least probable have the label of their most probable wrong class."""
    eta = class_probabilities(samples, num_classes)
    hardest = np.argsort(eta[np.arange(len(eta)), samples.labels], kind="stable")
    share = np.zeros(len(eta))
    share[hardest[: round(rate * len(eta))]] = 1.0
    return _to_runner_up(share, eta, samples.labels)


def _to_runner_up(share: np.ndarray, eta: np.ndarray, clean: np.ndarray) -> np.ndarray:
    own = np.eye(eta.shape[1])[clean]
    rows = (1.0 - share)[:, None] * own
    rows[np.arange(len(rows)), np.where(own > 0, -1.0, eta).argmax(axis=1)] = share
    return rows
