"""The groups of unknown samples, the interval of their share, and warnings with a remedy where the model does not fit."""

from typing import List, Tuple

import numpy as np
from sklearn.cluster import KMeans

from tllib_ext.target.embedding import unit
from tllib_ext.target.graph import MOST, Resemblance

__all__ = ["MOST", "group_unknown", "share_interval", "warnings_of"]

#: half-width of the interval by the error of the evidence, an imaginary error added to it, how much longer the lower half is
#: (more is called unknown than is, rather than less), and the half-width above which the share is not known.
WIDTH, MORE, LOWER, UNCERTAIN = 0.7, 0.05, 1.5, 0.25
_FEW, _FAR = 0.01, 0.15
_SILHOUETTE = 0.1  # one group is kept unless some number of groups reaches this
_REMEDY = "answer twenty questions (tllib-ext ask RUN) or try stronger features (docs/faq.md: too many or too few unknown)"


def group_unknown(z: np.ndarray, expected: float, seed: int = 0, most: int = 3000) -> Tuple[int, np.ndarray]:
    r"""Number of groups and the group of every unit row :math:`(N, d)`, the largest first: spherical k-means.

    ``expected`` groups are as large as a known class; between half and twice as many are tried, on at most ``most`` rows.
    """
    if len(z) < 6:
        return int(len(z) > 0), np.zeros(len(z), dtype=np.int64)
    sample = z if len(z) <= most else z[((np.arange(most) + 0.5) * len(z) / most).astype(np.int64)]
    highest = min(len(sample) // 3, max(3, int(round(2 * expected))), 100)
    lowest = min(max(2, int(expected / 2)), highest)
    best, found = _SILHOUETTE, unit(sample.mean(0, keepdims=True))
    for number in np.unique(np.linspace(lowest, highest, 8).round().astype(int)):
        centres = unit(KMeans(int(number), n_init=1, max_iter=30, random_state=seed).fit(sample).cluster_centers_)
        near = np.sort(1 - sample @ centres.T, axis=1)  # simplified silhouette: own centre against the nearest other one
        value = float(((near[:, 1] - near[:, 0]) / np.maximum(near[:, 1], 1e-9)).mean())
        if value > best:
            best, found = value, centres
    names, member = np.unique((z @ found.T).argmax(1), return_inverse=True)
    rank = np.argsort(np.argsort(-np.bincount(member), kind="stable"))
    return len(names), rank[member]


def share_interval(share: float, near: Resemblance) -> Tuple[Tuple[float, float], bool]:
    r"""90 % interval of the true share of unknown, and whether it tells the share.

    Its half-width grows with the error of the evidence and, since evidence from a far domain misleads, with the inverse of the
    resemblance of the samples that are most surely known, its 90 % quantile. A told share has no error.
    """
    if near.error == 0 and not near.weak:
        return (share, share), True
    half = WIDTH * (near.evidence_error + MORE) / max(float(np.quantile(near.value, 0.9)), MORE)
    return (max(share - LOWER * half, 0.0), min(share + half, 1.0)), half <= UNCERTAIN


def warnings_of(share: float, interval: Tuple[float, float], known: bool, closeness: float, number: int) -> List[str]:
    """What does not fit, each with a remedy."""
    low, high = interval
    cases = {
        f"{share:.0%} were called unknown; the true share lies between {low:.0%} and {high:.0%}: {_REMEDY}":
            not known,
        f"only {number} target samples: too few to find groups in; add target samples": number < 30,
        f"nothing in the target looks unknown: right for closed and partial label sets, else {_REMEDY}": share < _FEW,
        f"nearly everything in the target ({share:.0%}) was called unknown: check that both domains share classes and have"
        f" features made in the same way, or {_REMEDY}": share > MOST,
        f"the domains are far apart: the cosine of target samples with their source class is {closeness:.2f}; classes may be"
        f" mistaken for each other; {_REMEDY}": closeness < _FAR,
    }  # fmt: skip
    return [text for text, holds in cases.items() if holds]
