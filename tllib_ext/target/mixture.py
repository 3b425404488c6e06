r"""A mixture of K components tied to the source prototypes and M free ones, fitted to the target by EM.

.. math::
    r_{ic} = \mathrm{softmax}_c\big(\cos(z_i, m_c) / T + \log \pi_c\big), \qquad
    \pi_c = \frac{n_c + 1/2}{N + C / 2}, \qquad
    m_c \propto S_c + \kappa \frac{N}{C} \mu_c \ [c \le K], \qquad
    S_c = \sum_i r_{ic} z_i, \quad n_c = \sum_i r_{ic}, \quad C = K + M.

Imaginary samples at the prototypes are the tie: a class that the target does not hold stays where the source has it. M
makes the groups of unknown samples as large as the known classes. Rounds are few, so that components move onto the groups of
the target and no further.
"""

from dataclasses import dataclass, replace
from typing import Tuple

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.cluster import KMeans

from tllib_ext.target.embedding import unit

__all__ = ["Mixture", "class_size", "fit_mixture", "m_step", "nearest_prototype", "with_share"]

TEMPERATURE = 0.03
TIE = 0.1  # imaginary samples at each prototype, in mean component sizes
ROUNDS = 10
_MOST = 3000  # rows that k-means sees


@dataclass
class Mixture:
    """A mixture on the unit sphere; component c is of class ``owner[c]``, K being unknown."""

    centres: np.ndarray
    log_weights: np.ndarray
    temperature: float
    owner: np.ndarray

    def logits(self, z: np.ndarray) -> np.ndarray:
        """Of all components for unit rows z, :math:`(N, K + M)`."""
        return np.asarray(z @ self.centres.T / np.float32(self.temperature) + self.log_weights.astype(np.float32))

    def posterior(self, z: np.ndarray, num_classes: int) -> np.ndarray:
        """Of the K classes and unknown, :math:`(N, K + 1)`."""
        return np.asarray(softmax(self.logits(z), axis=1) @ np.eye(num_classes + 1, dtype=np.float32)[self.owner])


def m_step(z: np.ndarray, responsibilities: np.ndarray, prototypes: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    r"""Centres :math:`(C, d)` and logarithms of the weights :math:`(C,)`; the first K components are tied."""
    n, c = responsibilities.shape
    total = responsibilities.T @ z
    total[: len(prototypes)] += TIE * n / c * prototypes
    return unit(total), np.log((responsibilities.sum(0) + 0.5) / (n + 0.5 * c))


def class_size(labels: np.ndarray, num_classes: int) -> float:
    """Median number of samples of the known classes that the target holds, by labels (N,) of which K is unknown."""
    sizes = np.bincount(labels, minlength=num_classes + 1)[:num_classes]
    present = sizes > max(3.0, 0.1 * sizes.mean())
    return float(np.median(sizes[present])) if present.any() else max(len(labels) / num_classes, 1.0)


def fit_mixture(z: np.ndarray, labels: np.ndarray, prototypes: np.ndarray, seed: int = 0) -> Mixture:
    """From unit rows (N, d) and first labels (N,), of which K is unknown."""
    k, rejected, component = len(prototypes), labels == len(prototypes), labels.copy()
    number, m = int(rejected.sum()), 0
    if number:
        m = min(int(np.clip(round(number / class_size(labels, k)), 1, max(number // 3, 1))), 4 * k + 20)
        sample = z[rejected][:: max(1, number // _MOST)]
        means = KMeans(m, n_init=3, max_iter=50, random_state=seed).fit(sample).cluster_centers_
        component[rejected] = k + (z[rejected] @ unit(means).T).argmax(1)
    owner, r = np.append(np.arange(k), np.full(m, k)), np.eye(k + m, dtype=np.float32)[component]
    for _ in range(ROUNDS):
        r = softmax(Mixture(*m_step(z, r, prototypes), TEMPERATURE, owner).logits(z), axis=1)
    return Mixture(*m_step(z, r, prototypes), TEMPERATURE, owner)


def nearest_prototype(prototypes: np.ndarray) -> Mixture:
    """Every class at its prototype, and unknown without a direction."""
    k = len(prototypes)
    centres = np.concatenate([prototypes, np.zeros_like(prototypes[:1])])
    return Mixture(centres, np.zeros(k + 1), TEMPERATURE, np.arange(k + 1))


def with_share(mixture: Mixture, z: np.ndarray, num_classes: int, low: float, high: float) -> Mixture:
    """The mixture whose free components have a weight at which ``low`` to ``high`` of the unit rows (N, d) are unknown."""
    logits, free = mixture.logits(z), mixture.owner == num_classes
    if not free.any():
        return mixture
    odds = np.sort(logsumexp(logits[:, free], axis=1) - logsumexp(logits[:, ~free], axis=1))[::-1]
    found, (least, most) = int((odds > 0).sum()), (int(np.clip(round(share * len(z)), 0, len(z))) for share in (low, high))
    if least <= found <= most:
        return mixture
    borders = np.concatenate([[odds[0] + 1], (odds[:-1] + odds[1:]) / 2, [odds[-1] - 1]])
    border = borders[min(max(found, least), most)]
    return replace(mixture, log_weights=mixture.log_weights - np.where(free, border, 0.0))
