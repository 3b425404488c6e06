r"""Pseudo-labels of a whole target from features and a source model's probabilities: the rules of LEAD and GLC.

All features e are of unit length. Arrays in, arrays out; a pseudo-label is a one-hot row, or the uniform row for unknown.
"""

import warnings
from typing import NamedTuple, Sequence, Tuple

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from sklearn.mixture import GaussianMixture

from tllib_ext.target.embedding import unit

__all__ = ["PseudoLabels", "class_count", "lead_labels", "glc_labels"]


class PseudoLabels(NamedTuple):
    r"""Labels of N target samples.

    Shape:
        - labels: :math:`(N, K)`, rows sum to one; weights: :math:`(N, )`; unknown: :math:`(N, )` bool
    """

    labels: np.ndarray
    weights: np.ndarray
    unknown: np.ndarray


def class_count(e: np.ndarray, num_classes: int, shares: Sequence[float], seed: int = 0) -> float:
    r"""The number of target classes divided by K: the share with the best silhouette of k-means on a 2-D t-SNE.

    Args:
        e (numpy.ndarray): features, :math:`(N, D)`
        num_classes (int): K
        shares (sequence): candidates; 1 where none can be compared
        seed (int): of t-SNE and k-means
    """
    n = len(e)
    if n < 4:
        return 1.0
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        flat = TSNE(2, init="pca", random_state=seed, perplexity=min(30.0, (n - 1) / 3)).fit_transform(e)
        scores = {}
        for share in shares:
            count = max(int(num_classes * share), 2)
            found = KMeans(count, n_init=1, random_state=seed).fit_predict(flat) if count < n else np.zeros(n)
            if len(np.unique(found)) > 1:
                scores[share] = silhouette_score(flat, found)
    return max(scores, key=lambda share: scores[share], default=1.0)


def _most_probable(e: np.ndarray, p: np.ndarray, share: float) -> Tuple[np.ndarray, np.ndarray]:
    """For every class the images that have most of it, :math:`(n, K)`, and their unit mean, :math:`(K, D)`."""
    count = min(len(p), max(1, int(len(p) / max(1, int(p.shape[1] * share)))))
    top = np.argsort(-p, axis=0, kind="stable")[:count]
    return top, unit(e[top].mean(axis=0))


def _rows(known: np.ndarray, unknown: np.ndarray, num_classes: int) -> np.ndarray:
    return np.where(unknown[:, None], 1 / num_classes, np.eye(num_classes)[known])


def lead_labels(
    e: np.ndarray, p: np.ndarray, r: np.ndarray, anchors: np.ndarray, share: float, clear: bool = False, alpha: float = 1e-4
) -> PseudoLabels:
    r"""LEAD: a sample is unknown where more of its feature than a limit of its own is outside of the classifier's span.

    With :math:`T_k` the unit mean of the images most probably of class k, :math:`S_k` the classifier's unit row,
    :math:`a_k` their mean r and :math:`\mu_2` the larger mean of a mixture of two Gaussians over r:

    .. math::
        c_{ik} = \sqrt{(1 - e^{-[e_i T_k]_+})\, e^{[e_i S_k]_+ - 1}}, \qquad
        \theta_{ik} = a_k + c_{ik} [\mu_2 - a_k]_+, \qquad \hat k_i = \arg\max_k c_{ik}

    unknown iff :math:`r_i \ge \theta_i = \theta_{i \hat k_i}`; its weight is
    :math:`1 - (1 + (r_i - \theta_i)^2 / \alpha)^{-(\alpha + 1)/2}`.

    Args:
        e (numpy.ndarray), p (numpy.ndarray): features :math:`(N, D)` and probabilities :math:`(N, K)`
        r (numpy.ndarray): length of each feature outside of the span of the classifier's rows, :math:`(N, )`
        anchors (numpy.ndarray): the classifier's unit rows, :math:`(K, D)`
        share (float): number of target classes divided by K
        clear (bool): weight 1 where :math:`r_i \ge \mu_2` or :math:`r_i < a_{\hat k}`
        alpha (float): degrees of freedom of the Student-t weight
    """
    top, means = _most_probable(e, p, share)
    common = np.sqrt((1 - np.exp(-np.maximum(e @ means.T, 0))) * np.exp(np.maximum(e @ anchors.T, 0) - 1))
    typical = r[top].mean(axis=0)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # equal values have one component
        upper = GaussianMixture(2, random_state=0).fit(r[:, None]).means_.max() if len(r) > 1 else r.max()
    best = common.argmax(axis=1)
    limit = typical[best] + common.max(axis=1) * np.maximum(upper - typical[best], 0)
    weights = 1 - (1 + (r - limit) ** 2 / alpha) ** (-(alpha + 1) / 2)
    if clear:
        weights = np.where((r >= upper) | (r < typical[best]), 1.0, weights)
    unknown = r >= limit
    return PseudoLabels(_rows(best, unknown, p.shape[1]), weights, unknown)


def glc_labels(e: np.ndarray, p: np.ndarray, share: float, rho: float = 0.75, seed: int = 0) -> PseudoLabels:
    r"""GLC: a sample is of class k if the class's prototype is nearer than every cluster of the other samples.

    The prototype of k is the unit mean of the images most probably of it; its cosine is multiplied by
    :math:`\rho + (1 - \rho) \bar p_k`. Everything else is clustered by k-means, for each class anew. A sample is also not of
    class k if another class's prototype is nearer; what is of no class is unknown. All weights are 1.

    Args:
        e (numpy.ndarray), p (numpy.ndarray): features :math:`(N, D)` and probabilities :math:`(N, K)`
        share (float): number of target classes divided by K; as many clusters are made
        rho (float): least factor of the prototype's cosine
        seed (int): of k-means
    """
    top, means = _most_probable(e, p, share)
    nearest = (e @ means.T).argmax(axis=1)
    known = np.zeros(len(e), dtype=bool)
    for k in np.unique(nearest):
        others = np.setdiff1d(np.arange(len(e)), top[:, k])
        clusters = min(max(1, int(p.shape[1] * share)), len(others))
        own = e @ means[k] * (rho + (1 - rho) * p[top[:, k], k].mean())
        if not clusters:
            known |= nearest == k
            continue
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            centres = unit(KMeans(clusters, n_init=1, max_iter=100, random_state=seed).fit(e[others]).cluster_centers_)
        known |= (nearest == k) & (own >= (e @ centres.T).max(axis=1))
    return PseudoLabels(_rows(nearest, ~known, p.shape[1]), np.ones(len(e)), ~known)
