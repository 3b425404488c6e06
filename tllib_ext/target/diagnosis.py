"""The groups of unknown samples, the error of their share, and warnings with a remedy where the model does not fit."""

from typing import List, Sequence, Tuple

import numpy as np
from sklearn.cluster import KMeans

from tllib_ext.target.embedding import unit

__all__ = ["UNCERTAIN", "group_unknown", "share_error", "simplified_silhouette", "warnings_of"]

#: with an error above this the share is not known.
UNCERTAIN = 0.1
_FEW, _MOST = 0.01, 0.95
_APART, _FAR = 1.5, 0.25
_SILHOUETTE = 0.1  # one group is kept unless some number of groups reaches this
_REMEDY = "try a stronger backbone or training on images"


def simplified_silhouette(z: np.ndarray, centres: np.ndarray) -> float:
    r"""Mean of :math:`(b_i - a_i) / \max(a_i, b_i)`, with a and b one minus the largest and second cosine with a centre.

    Examples::

        >>> round(simplified_silhouette(np.eye(2), np.eye(2)), 2)
        1.0
    """
    near = np.sort(1 - z @ centres.T, axis=1)
    return float(((near[:, 1] - near[:, 0]) / np.maximum(near[:, 1], 1e-9)).mean())


def group_unknown(z: np.ndarray, expected: float, seed: int = 0, most: int = 3000) -> Tuple[int, np.ndarray]:
    r"""Number of groups and the group of every unit row :math:`(N, d)`, the largest first: spherical k-means.

    Args:
        expected (float): number of groups as large as a known class; between half and twice as many are tried
        seed (int, optional): of k-means. Default: 0
        most (int, optional): k-means uses at most that many rows, evenly spread. Default: 3000
    """
    if len(z) < 6:
        return int(len(z) > 0), np.zeros(len(z), dtype=np.int64)
    sample = z if len(z) <= most else z[((np.arange(most) + 0.5) * len(z) / most).astype(np.int64)]
    highest = min(len(sample) // 3, max(3, int(round(2 * expected))), 100)
    lowest = min(max(2, int(expected / 2)), highest)
    best, found = _SILHOUETTE, unit(sample.mean(0, keepdims=True))
    for number in np.unique(np.linspace(lowest, highest, 8).round().astype(int)):
        centres = unit(KMeans(int(number), n_init=1, max_iter=30, random_state=seed).fit(sample).cluster_centers_)
        value = simplified_silhouette(sample, centres)
        if value > best:
            best, found = value, centres
    names, member = np.unique((z @ found.T).argmax(1), return_inverse=True)
    rank = np.argsort(np.argsort(-np.bincount(member), kind="stable"))
    return len(names), rank[member]


def share_error(share: float, shares: Sequence[float], unknown: np.ndarray) -> float:
    r"""Error of the share of unknown: sampling, disagreement and ambiguity, in quadrature.

    Args:
        share (float): the estimate
        shares (sequence of float): the same by every mixture and by the soft labels of both passes
        unknown (numpy.ndarray): posterior of unknown by the soft labels; :math:`\mathrm{mean} \min(p, 1 - p)` is the share of
            samples that could go either way

    Examples::

        >>> round(share_error(0.5, [0.5, 0.5], np.repeat([0.0, 1.0], 50)), 3)
        0.05
    """
    sampling = share * (1 - share) / len(unknown)
    disagreement = float(np.mean((np.asarray(shares) - share) ** 2))
    ambiguity = float(np.minimum(unknown, 1 - unknown).mean()) ** 2
    return float(np.sqrt(sampling + disagreement + ambiguity))


def warnings_of(share: float, share_std: float, separation: float, closeness: float, number: int) -> List[str]:
    """What does not fit, each with a remedy."""
    cases = {
        f"only {number} target samples: too few to find groups in; add target images": number < 30,
        f"nothing in the target looks unknown: right for closed and partial label sets, else {_REMEDY}": share < _FEW,
        "nearly everything in the target looks unknown: check that the two domains share classes and that their features come"
        " from one backbone with the same preprocessing": share > _MOST,
        f"the share of unknown is not known ({share:.0%} ± {share_std:.0%}): look at the gallery of unknown images, and"
        f" {_REMEDY}": share_std > UNCERTAIN,
        f"known and unknown are no two groups in these features ({separation:.1f} sd apart): decisions of unknown are close to"
        f" guesses; {_REMEDY}": separation < _APART,
        f"the domains are far apart: the cosine of target groups with their source class is {closeness:.2f}; classes may be"
        f" mistaken for each other; {_REMEDY}": closeness < _FAR,
    }  # fmt: skip
    return [text for text, holds in cases.items() if holds]
