r"""Divergences and entropies of two (or more) heads' outputs, one value per sample, and the reduction of such values.

Everything is computed in float32 (float64 stays) by ``log_softmax``, so that half precision neither overflows nor takes
the logarithm of a probability that underflowed. With more than two heads a divergence is the mean over pairs of heads,
so that two heads give the paper's quantities.
"""

import math
from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError

__all__ = [
    "at_least_float32",
    "check_heads",
    "check_reduction",
    "cross_divergence",
    "divergences",
    "mean_distribution_entropy",
    "reduced",
]


def at_least_float32(logits: Tensor) -> Tensor:
    """``logits`` in float32; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


def check_heads(logits: Sequence[Tensor]) -> None:
    """Raise unless ``logits`` are those of two or more heads for the same samples."""
    if isinstance(logits, Tensor) or len(logits) < 2 or len({head.shape for head in logits}) > 1:
        shapes = tuple(logits.shape) if isinstance(logits, Tensor) else [tuple(head.shape) for head in logits]
        raise UserError(f"logits {shapes}: expected a sequence of two or more heads' logits, each (N, K)")


def divergences(logits: Sequence[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    r"""The symmetric KL divergence (eq. 1-3), the cross divergence and the entropy (eq. 5) of each sample:

    .. math::
        \mathrm{crs} &= H(p_1, p_2) + H(p_2, p_1) \\
        \mathrm{ent} &= H(p_1) + H(p_2) \\
        \mathrm{skld} &= KL(p_1 \| p_2) + KL(p_2 \| p_1) = \mathrm{crs} - \mathrm{ent}

    Inputs:
        - logits (sequence of tensor): one per head, at least two

    Outputs:
        - skld, crs, ent

    Shape:
        - logits: :math:`(N, K)` each
        - Outputs: :math:`(N, )` each

    Examples::

        >>> logits = torch.tensor([[0., 0.]]), torch.tensor([[0., 0.]])
        >>> skld, crs, ent = divergences(logits)
        >>> round(skld.item(), 4), round(crs.item(), 4), round(ent.item(), 4)
        (0.0, 1.3863, 1.3863)
    """
    crs, negative_entropy = _crs(logits)
    ent = negative_entropy * (-2 / len(logits))
    return crs - ent, crs, ent


def cross_divergence(logits: Sequence[Tensor]) -> Tensor:
    r"""crs of :func:`divergences` alone: the score by which a sample is called unknown.

    Shape:
        - logits: :math:`(N, K)` each
        - Outputs: :math:`(N, )`

    Examples::

        >>> round(cross_divergence((torch.zeros(1, 3), torch.zeros(1, 3))).item(), 4)  # 2 log 3
        2.1972
    """
    return _crs(logits)[0]


def mean_distribution_entropy(logits: Sequence[Tensor], eps: float = 0.0) -> Tensor:
    r"""Twice the entropy of the heads' mean distribution, which the authors' code uses where the paper has ent:

    .. math::
        2 H(\bar p) = \mathrm{ent} + 2\, JSD(p_1, p_2), \qquad \bar p = \frac{1}{H} \sum_h p_h

    It is on the scale of ent, so that the same :math:`\delta` and :math:`m` apply.

    Args:
        eps (float): the authors' code takes :math:`\log(\bar p + 10^{-5})`; 0 is exact

    Shape:
        - logits: :math:`(N, K)` each
        - Outputs: :math:`(N, )`

    Examples::

        >>> opposite = torch.tensor([[50., 0.]]), torch.tensor([[0., 50.]])  # sure of different classes
        >>> round(mean_distribution_entropy(opposite).item(), 4)  # 2 log 2
        1.3863
    """
    check_heads(logits)
    log_p = _log_probs(logits)
    log_mean = log_p.logsumexp(0) - math.log(len(logits))
    mean = log_mean.exp()
    return -2 * (mean * (torch.log(mean + eps) if eps else log_mean)).sum(-1)


def check_reduction(reduction: str) -> str:
    """``reduction`` if it is ``"mean"``, ``"sum"`` or ``"none"``, else an error."""
    if reduction not in ("mean", "sum", "none"):
        raise UserError(f"reduction={reduction!r}: expected mean, sum or none")
    return reduction


def reduced(values: Tensor, reduction: str, mask: Optional[Tensor] = None) -> Tensor:
    r"""The mean or the sum of the (masked) values, or the values with zeros outside the mask.

    A mean is over the batch of all processes where ``torch.distributed`` runs (:func:`tllib_ext.distributed.pooled_mean`);
    an empty mask gives a zero that keeps the graph.

    Shape:
        - values: :math:`(N, )`; mask: :math:`(N, )` bool
        - Outputs: scalar; :math:`(N, )` with ``"none"``

    Examples::

        >>> values, mask = torch.tensor([1., 2., 9.]), torch.tensor([True, True, False])
        >>> reduced(values, "mean", mask).item(), reduced(values, "sum", mask).item(), reduced(values, "none", mask).tolist()
        (1.5, 3.0, [1.0, 2.0, 0.0])
    """
    if reduction == "mean":
        return pooled_mean(values, mask)
    # where, not multiply: an infinite value outside the mask must not become NaN.
    values = values if mask is None else torch.where(mask, values, 0.0)
    return values.sum() if reduction == "sum" else values


def _log_probs(logits: Sequence[Tensor]) -> Tensor:
    # Autocast leaves float32 inputs of these operations as they are; switching it off would exclude devices without it.
    return F.log_softmax(torch.stack([at_least_float32(head) for head in logits]), dim=-1)


def _crs(logits: Sequence[Tensor]) -> Tuple[Tensor, Tensor]:
    """crs, and the sum over the heads of each one's negative entropy."""
    check_heads(logits)
    log_p = _log_probs(logits)
    p, heads = log_p.exp(), len(logits)
    own = (p * log_p).sum((0, 2))  # of each head against itself
    every = (p.sum(0) * log_p.sum(0)).sum(-1)  # of every head against every head, multiplied out
    return (every - own) * (-2 / (heads * (heads - 1))), own
