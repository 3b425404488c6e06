"""How well features separate the classes among the unknown images: clusters against true classes."""

from typing import Tuple

import numpy as np

__all__ = ["discovery", "spherical_kmeans"]


def discovery(features: np.ndarray, classes: np.ndarray, seed: int = 0) -> Tuple[float, float]:
    r"""NMI and accuracy of clusters of the unknown images, as UniOT and GLC++ report them.

    The clusters are those of spherical k-means with as many clusters as there are true classes. The NMI is divided by the
    arithmetic mean of both entropies; the accuracy is the share of images whose cluster is matched to their class, each
    cluster to one class (Hungarian algorithm).

    Args:
        features (array): :math:`(N, D)` of the unknown images
        classes (array): :math:`(N, )` their true classes, any integers
        seed (int): of the first centres
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import normalized_mutual_info_score

    names, truth = np.unique(classes, return_inverse=True)
    clusters = spherical_kmeans(features, len(names), seed)
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (clusters, truth), 1)
    matched = counts[linear_sum_assignment(-counts)].sum() / len(truth)
    return float(normalized_mutual_info_score(truth, clusters)), float(matched)


def spherical_kmeans(
    features: np.ndarray, num_clusters: int, seed: int = 0, iterations: int = 20, restarts: int = 5
) -> np.ndarray:
    r"""The clusters, :math:`(N, )`, with the largest sum of cosines to their centres over ``restarts`` random starts.

    Examples::

        >>> x = np.array([[1.0, 0.1], [2.0, 0.0], [0.1, 1.0], [0.0, 3.0]])
        >>> clusters = spherical_kmeans(x, 2)
        >>> bool(clusters[0] == clusters[1] != clusters[2] == clusters[3])
        True
    """
    x = np.asarray(features, dtype=np.float64)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    rng, best, chosen = np.random.RandomState(seed), -np.inf, np.zeros(len(x), dtype=np.int64)
    for _ in range(restarts):
        centres = x[rng.choice(len(x), num_clusters, replace=False)]
        for _ in range(iterations):
            clusters = (x @ centres.T).argmax(axis=1)
            sums = np.eye(num_clusters)[clusters].T @ x
            length = np.linalg.norm(sums, axis=1, keepdims=True)
            centres = np.where(length > 0, sums / np.maximum(length, 1e-12), centres)  # an empty cluster keeps its centre
        cosines = x @ centres.T
        if cosines.max(axis=1).sum() > best:
            best, chosen = cosines.max(axis=1).sum(), cosines.argmax(axis=1)
    return chosen
