r"""Into how many groups do the unknown samples fall, and which samples are in each?

Spherical k-means with 1 to ``limit`` groups. A number is judged by the simplified silhouette (own centre against the
nearest other one), which costs O(N M d) and not O(N^2); one group is kept unless some number reaches 0.1.
"""

from typing import Tuple

import numpy as np
from sklearn.cluster import KMeans

from tllib_ext.target.embedding import unit

__all__ = ["group_unknown", "simplified_silhouette"]

_LEAST = 0.1


def simplified_silhouette(z: np.ndarray, centres: np.ndarray) -> float:
    r"""Mean of :math:`(b_i - a_i) / \max(a_i, b_i)`, with a and b one minus the largest and second cosine with a centre.

    Examples::

        >>> round(simplified_silhouette(np.eye(2), np.eye(2)), 2)
        1.0
    """
    near = np.sort(1 - z @ centres.T, axis=1)
    return float(((near[:, 1] - near[:, 0]) / np.maximum(near[:, 1], 1e-9)).mean())


def group_unknown(z: np.ndarray, expected: float, seed: int = 0, most: int = 3000) -> Tuple[int, np.ndarray]:
    r"""Number of groups and the group of every row.

    Args:
        z (numpy.ndarray): unit rows of the unknown samples, :math:`(N, d)`
        expected (float): number of groups as large as a known class; between half and twice as many are tried
        seed (int, optional): of k-means. Default: 0
        most (int, optional): k-means sees at most so many rows, evenly spread. Default: 3000
    """
    if len(z) < 6:
        return int(len(z) > 0), np.zeros(len(z), dtype=np.int64)
    sample = z if len(z) <= most else z[((np.arange(most) + 0.5) * len(z) / most).astype(np.int64)]
    highest = min(len(sample) // 3, max(3, int(round(2 * expected))), 100)
    lowest = min(max(2, int(expected / 2)), highest)
    best, found = _LEAST, unit(sample.mean(0, keepdims=True))
    for number in np.unique(np.linspace(lowest, highest, 8).round().astype(int)):
        centres = unit(KMeans(int(number), n_init=1, max_iter=30, random_state=seed).fit(sample).cluster_centers_)
        value = simplified_silhouette(sample, centres)
        if value > best:
            best, found = value, centres
    member = (z @ found.T).argmax(1)
    names, member = np.unique(member, return_inverse=True)
    order = np.argsort(-np.bincount(member), kind="stable")  # the largest group comes first
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return len(names), rank[member]
