r"""A mixture of K components tied to the source prototypes and M free ones, fitted to the target by EM.

.. math::
    r_{ic} = \mathrm{softmax}_c\big(\cos(z_i, m_c) / T + \log \pi_c\big), \qquad
    \pi_c = \frac{n_c + 1/2}{N + C / 2}, \qquad
    m_c \propto S_c + \big(\kappa N / C + \lambda \lVert S_c \rVert\big)\, \mu_c \ [c \le K], \qquad
    S_c = \sum_i r_{ic} z_i, \quad n_c = \sum_i r_{ic}, \quad C = K + M.

The tie has two parts: imaginary samples at the prototype (a class that the target does not hold stays where the source has
it) and a share of the resultant (a large group does not carry a component away). Rounds are few, so that components move
onto the groups of the target and no further. A free component joins the class that has at least the share :data:`JOIN` of
its soft labels: a class far from its prototype is accepted in part, a group that is unknown is accepted nowhere. The
likelihood does not tell the number of groups, so posteriors are averaged over several M and temperatures.
"""

from dataclasses import dataclass
from typing import Dict, List, Tuple

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.cluster import KMeans

from tllib_ext.target.embedding import unit

__all__ = ["Mixture", "class_size", "fit_mixtures", "m_step", "nearest_prototype", "number_of_groups", "owners"]

#: free components, as multiples of the number that makes unknown groups as large as known classes.
SCALES: Tuple[float, ...] = (0.5, 1.0, 2.0)
TEMPERATURES: Tuple[float, ...] = (0.02, 0.04)
TIE = 0.1  # imaginary samples at each prototype, in mean component sizes
PULL = 0.3  # share of the resultant that is added at the prototype
JOIN = 0.3  # share of one class in the soft labels of a free component that makes it part of that class
ROUNDS = 10
_MOST = 3000  # rows that k-means sees


@dataclass
class Mixture:
    """A mixture on the unit sphere; component c is of class ``owner[c]``, K being unknown."""

    centres: np.ndarray
    log_weights: np.ndarray
    temperature: float
    owner: np.ndarray

    def responsibilities(self, z: np.ndarray) -> np.ndarray:
        """Of all components for unit rows z, :math:`(N, K + M)`."""
        logits = z @ self.centres.T / np.float32(self.temperature) + self.log_weights.astype(np.float32)
        return np.asarray(softmax(logits, axis=1))

    def posterior(self, z: np.ndarray, num_classes: int) -> np.ndarray:
        """Of the K classes and unknown, :math:`(N, K + 1)`."""
        return np.asarray(self.responsibilities(z) @ np.eye(num_classes + 1, dtype=np.float32)[self.owner])


def m_step(z: np.ndarray, responsibilities: np.ndarray, prototypes: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    r"""Centres :math:`(C, d)` and logarithms of the weights :math:`(C,)`; the first K components are tied."""
    n, c = responsibilities.shape
    total = responsibilities.T @ z
    known = slice(0, len(prototypes))
    total[known] += (TIE * n / c + PULL * np.linalg.norm(total[known], axis=1, keepdims=True)) * prototypes
    return unit(total), np.log((responsibilities.sum(0) + 0.5) / (n + 0.5 * c))


def class_size(soft: np.ndarray) -> float:
    """Median size of the known classes that the target holds, by soft labels (N, K + 1)."""
    mass = soft[:, :-1].sum(0)
    present = mass > max(3.0, 0.1 * mass.sum() / len(mass))
    return float(np.median(mass[present])) if present.any() else len(soft) / len(mass)


def number_of_groups(soft: np.ndarray) -> float:
    """How many groups of the size of a known class make the unknown mass of soft labels (N, K + 1)."""
    return float(soft[:, -1].sum() / max(class_size(soft), 1e-9))


def fit_mixtures(z: np.ndarray, soft: np.ndarray, prototypes: np.ndarray, seed: int = 0) -> List[Mixture]:
    """One mixture per number of free components and temperature, from unit rows (N, d) and soft labels (N, K + 1)."""
    n, k = len(z), len(prototypes)
    rejected = soft[:, -1] > 0.5
    found: List[Mixture] = []
    fitted: Dict[int, List[Mixture]] = {}
    for scale in SCALES:
        m = 0
        if rejected.sum() >= 6:  # fewer make no group
            m = min(int(np.clip(round(scale * number_of_groups(soft)), 1, rejected.sum() // 3)), 4 * k + 20)
        if m not in fitted:
            start = np.zeros((n, k + m), dtype=np.float32)
            start[:, :k] = soft[:, :k]
            if m:
                sample = z[rejected][:: max(1, int(rejected.sum()) // _MOST)]
                means = KMeans(m, n_init=3, max_iter=50, random_state=seed).fit(sample).cluster_centers_
                start[np.arange(n), k + (z @ unit(means).T).argmax(1)] = soft[:, -1]
            fitted[m] = [_climb(z, start, prototypes, soft, temperature) for temperature in TEMPERATURES]
        found += fitted[m]
    return found


def nearest_prototype(z: np.ndarray, prototypes: np.ndarray, share: float) -> Mixture:
    r"""The nearest class, or unknown for the ``share`` of rows with the lowest :math:`\log \sum_k \exp(\cos(z_i, \mu_k) / T)`.

    That quantile is the logit of the unknown, the same for all rows: a component without a direction.
    """
    temperature = max(TEMPERATURES)
    level = float(np.quantile(logsumexp(z @ prototypes.T / np.float32(temperature), axis=1), share))
    k, d = prototypes.shape
    centres = np.concatenate([prototypes, np.zeros((1, d), dtype=prototypes.dtype)])
    return Mixture(centres, np.append(np.zeros(k), level), temperature, np.arange(k + 1))


def owners(responsibilities: np.ndarray, soft: np.ndarray) -> np.ndarray:
    """Class of every component: tied ones keep theirs, free ones join a class or are unknown (K)."""
    k = soft.shape[1] - 1
    vote = responsibilities.T @ soft[:, :k] / np.maximum(responsibilities.sum(0), 1e-9)[:, None]
    return np.where(np.arange(len(vote)) < k, np.arange(len(vote)), np.where(vote.max(1) >= JOIN, vote.argmax(1), k))


def _climb(z: np.ndarray, r: np.ndarray, prototypes: np.ndarray, soft: np.ndarray, temperature: float) -> Mixture:
    for _ in range(ROUNDS):
        mixture = Mixture(*m_step(z, r, prototypes), temperature, np.arange(r.shape[1]))
        r = mixture.responsibilities(z)
    return Mixture(*m_step(z, r, prototypes), temperature, owners(r, soft))
