"""How well does the target model fit? The error of the share of unknown, and warnings with a remedy."""

from typing import List, Sequence

import numpy as np

__all__ = ["UNCERTAIN", "share_error", "warnings_of"]

#: an error of the share above this means: not known.
UNCERTAIN = 0.1
_FEW, _MOST = 0.01, 0.95
_APART, _FAR = 1.5, 0.25


def share_error(share: float, shares: Sequence[float], unknown: np.ndarray, number: int) -> float:
    r"""Error of the share of unknown: sampling, disagreement and ambiguity, in quadrature.

    Args:
        share (float): the estimate
        shares (sequence of float): the same by every mixture and by the soft labels of both passes
        unknown (numpy.ndarray): posterior of unknown by the soft labels; :math:`\mathrm{mean} \min(p, 1 - p)` is the share of
            samples that could go either way
        number (int): number of samples

    Examples::

        >>> round(share_error(0.5, [0.5, 0.5], np.array([0.0, 1.0]), 100), 3)
        0.05
    """
    sampling = share * (1 - share) / max(number, 1)
    disagreement = float(np.mean((np.asarray(shares) - share) ** 2))
    ambiguity = float(np.minimum(unknown, 1 - unknown).mean()) ** 2
    return float(np.sqrt(sampling + disagreement + ambiguity))


def warnings_of(share: float, share_std: float, separation: float, closeness: float, number: int) -> List[str]:
    """What a user must know before believing the model."""
    out = []
    if number < 30:
        out.append(f"only {number} target samples: too few to find groups in; add target images")
    if share < _FEW:
        out.append("nothing in the target looks unknown: right for closed and partial label sets, else try a stronger backbone")
    if share > _MOST:
        out.append(
            "nearly everything in the target looks unknown: check that the two domains share classes and that their"
            " features come from one backbone with the same preprocessing"
        )
    if share_std > UNCERTAIN:
        out.append(
            f"the share of unknown is not known ({share:.0%} ± {share_std:.0%}): look at the gallery of unknown images, and"
            " try a stronger backbone or training on images"
        )
    if separation < _APART:
        out.append(
            f"known and unknown are no two groups in these features ({separation:.1f} sd apart): decisions of unknown are"
            " close to guesses; try a stronger backbone or training on images"
        )
    if closeness < _FAR:
        out.append(
            f"the domains are far apart: the cosine of target groups with their source class is {closeness:.2f}; classes may be"
            " mistaken for each other; try a stronger backbone or training on images"
        )
    return out
