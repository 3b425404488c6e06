"""The groups of unknown samples, the error of their share, and warnings with a remedy where the model does not fit."""

from typing import List, Sequence, Tuple

import numpy as np
from sklearn.cluster import KMeans

from tllib_ext.target.cosines import expected_maximum, null_spread
from tllib_ext.target.embedding import unit

__all__ = ["MOST", "UNCERTAIN", "WEAK", "WEAK_SHARE", "group_unknown", "share_error", "warnings_of"]

#: with an error above this the share is not known.
UNCERTAIN = 0.1
#: below this separation, or with a larger share of unknown, the features do not tell known from unknown; then
#: :data:`WEAK_SHARE` is called unknown.
WEAK, MOST, WEAK_SHARE = 0.5, 0.95, 1 / 3
_FEW = 0.01
_APART, _FAR = 1.5, 0.25
_SILHOUETTE = 0.1  # one group is kept unless some number of groups reaches this
_REMEDY = "try better features (docs/faq.md: too many or too few unknown)"


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


def share_error(
    share: float,
    shares: Sequence[float],
    soft: np.ndarray,
    cosines: np.ndarray,
    decision: np.ndarray,
    held: np.ndarray,
    margin: np.ndarray,
) -> float:
    r"""Error of the share of unknown: six terms in quadrature.

    Sampling; disagreement of ``shares``, of every mixture and of both passes; ambiguity, the mean of
    :math:`\min(p, 1 - p)` of the soft labels. These do not show an error that all mixtures have in common, so three signs of
    one join in: unequal class sizes, :math:`0.6 \sqrt{u (1 - u)}` times their coefficient of variation (a class that took
    unknown samples, or lost its own); and the share of samples called unknown whose nearest class is not ``held`` by the
    target although their cosine with it is above what chance explains (a class that was lost as a whole); and three times the
    share, times the excess over 0.4 of a ratio of mean ``margin``s: by how much a sample itself is nearer to its nearest class
    than to the second, of the samples called unknown to those called known (known classes that look different in the
    target). The factors were set on development data, so that an error above 0.1 is announced.
    """
    k = cosines.shape[1]
    ambiguity = np.minimum(soft[:, -1], 1 - soft[:, -1]).mean()
    sizes = np.bincount(decision, minlength=k + 1)[:k][held]
    uneven = 0.6 * np.sqrt(share * (1 - share)) * sizes.std() / max(sizes.mean(), 1e-9) if len(sizes) else 0.0
    close = cosines.max(1) > (expected_maximum(k) + 1) * null_spread(cosines)
    lost = ((decision == k) & ~held[cosines.argmax(1)] & close).mean()
    disagreement = np.sqrt(np.mean((np.asarray(shares) - share) ** 2))
    unknown, excess = decision == k, 0.0
    if unknown.any() and not unknown.all():
        excess = 3 * share * max(margin[unknown].mean() / max(margin[~unknown].mean(), 1e-9) - 0.4, 0.0)
    sampling = np.sqrt(share * (1 - share) / len(decision))
    return float(np.linalg.norm([sampling, disagreement, ambiguity, uneven, lost, excess]))


def warnings_of(share: float, share_std: float, separation: float, closeness: float, number: int) -> List[str]:
    """What does not fit, each with a remedy."""
    cases = {
        f"only {number} target samples: too few to find groups in; add target samples": number < 30,
        f"nothing in the target looks unknown: right for closed and partial label sets, else {_REMEDY}": share < _FEW,
        f"the share of unknown is not known ({share:.0%} ± {share_std:.0%}): look at the samples called unknown, and"
        f" {_REMEDY}": share_std > UNCERTAIN,
        f"these features do not group the target by class: the nearest source class decides, and the {share:.0%} that resemble"
        f" their class least are called unknown, a convention, no estimate; check that both domains share classes and have"
        f" features that were computed in the same way, or {_REMEDY}": separation <= WEAK,
        f"known and unknown are no two groups in these features ({separation:.1f} sd apart): decisions of unknown are close to"
        f" guesses; {_REMEDY}": WEAK < separation < _APART,
        f"the domains are far apart: the cosine of target groups with their source class is {closeness:.2f}; classes may be"
        f" mistaken for each other; {_REMEDY}": closeness < _FAR,
    }  # fmt: skip
    return [text for text, holds in cases.items() if holds]
