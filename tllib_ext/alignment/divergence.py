r"""Losses of `Divergence Optimization for Noisy Universal Domain Adaptation (CVPR 2021)
<https://arxiv.org/abs/2104.00246>`_ on the logits of two (or more) classifier heads.

Equation numbers are the paper's. Everything is computed in float32 (float64 stays) by ``log_softmax``, so that half
precision neither overflows nor takes the logarithm of a probability that underflowed. With more than two heads a
divergence is the mean over pairs of heads, so that two heads give the paper's quantities.
"""

import math
from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.errors import UserError

__all__ = [
    "at_least_float32",
    "divergences",
    "cross_divergence",
    "joint_loss",
    "mean_distribution_entropy",
    "num_kept",
    "separation",
    "small_loss_mask",
    "SeparationLoss",
    "SmallLossSelection",
]


#: a label that cannot occur.
_NONE = -(2**62)


def at_least_float32(logits: Tensor) -> Tensor:
    """``logits`` in float32; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _check_heads(logits: Sequence[Tensor]) -> None:
    if isinstance(logits, Tensor) or len(logits) < 2 or len({head.shape for head in logits}) > 1:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else [tuple(head.shape) for head in logits]
        raise UserError(f"logits {found}: expected a sequence of two or more heads' logits, each (N, K)")


def _check_labels(labels: Tensor, num_classes: int) -> None:
    if len(labels) == 0:
        raise UserError("the batch is empty: a mean loss needs at least one sample")
    # Only on a CPU: elsewhere the check would wait for the device, whose own assertion follows.
    if labels.device.type == "cpu" and not bool(((labels >= 0) & (labels < num_classes)).all()):
        raise UserError(f"labels run from {int(labels.min())} to {int(labels.max())}: expected 0..{num_classes - 1}")


def _log_probs(logits: Sequence[Tensor]) -> Tensor:
    # Autocast leaves float32 inputs of these operations as they are; switching it off would exclude devices without it.
    return F.log_softmax(torch.stack([at_least_float32(head) for head in logits]), dim=-1)


def divergences(logits: Sequence[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    r"""The symmetric KL divergence (eq. 1-3), the cross divergence and the entropy (eq. 5) of each sample:

    .. math::
        \mathrm{crs} &= H(p_1, p_2) + H(p_2, p_1) \\
        \mathrm{ent} &= H(p_1) + H(p_2) \\
        \mathrm{skld} &= KL(p_1 \| p_2) + KL(p_2 \| p_1) = \mathrm{crs} - \mathrm{ent}

    Inputs:
        - logits (sequence of tensor): one per head, at least two

    Outputs:
        - skld, crs, ent, each of shape :math:`(N, )`

    Examples::

        >>> logits = torch.tensor([[0., 0.]]), torch.tensor([[0., 0.]])
        >>> skld, crs, ent = divergences(logits)
        >>> round(skld.item(), 4), round(crs.item(), 4), round(ent.item(), 4)
        (0.0, 1.3863, 1.3863)
    """
    crs, own = _crs(logits)
    ent = own * (-2 / len(logits))
    return crs - ent, crs, ent


def _crs(logits: Sequence[Tensor]) -> Tuple[Tensor, Tensor]:
    """crs, and the sum over the heads of each one's negative entropy."""
    _check_heads(logits)
    log_p = _log_probs(logits)
    p, heads = log_p.exp(), len(logits)
    own = (p * log_p).sum((0, 2))  # of each head against itself
    every = (p.sum(0) * log_p.sum(0)).sum(-1)  # of every head against every head, multiplied out
    return (every - own) * (-2 / (heads * (heads - 1))), own


def cross_divergence(logits: Sequence[Tensor]) -> Tensor:
    r"""crs of eq. 5: the score by which a sample is called unknown (eq. 15).

    Shape:
        - logits: :math:`(N, K)` each
        - Outputs: :math:`(N, )`
    """
    return _crs(logits)[0]


def mean_distribution_entropy(logits: Sequence[Tensor], eps: float = 0.0) -> Tensor:
    r"""Twice the entropy of the heads' mean distribution, which the authors' code uses where the paper has ent:

    .. math::
        2 H(\bar p) = \mathrm{ent} + 2\, JSD(p_1, p_2), \qquad \bar p = \frac{1}{H} \sum_h p_h

    It is on the scale of ent, so that the same :math:`\delta` and :math:`m` apply.

    Args:
        eps (float): the authors' code takes :math:`\log(\bar p + 10^{-5})`; 0 is exact
    """
    log_p = _log_probs(logits)
    log_mean = log_p.logsumexp(0) - math.log(len(logits))
    mean = log_mean.exp()
    return -2 * (mean * (torch.log(mean + eps) if eps else log_mean)).sum(-1)


def joint_loss(logits: Sequence[Tensor], labels: Tensor, lam: float = 0.1) -> Tensor:
    r"""The per-sample source loss (eq. 8), by which samples are also selected (eq. 9):

    .. math::
        L_s(x, y) = CE(p_1, y) + CE(p_2, y) + \lambda\, \mathrm{skld}(x)

    Shape:
        - logits: :math:`(N, K)` each; labels: :math:`(N, )`
        - Outputs: :math:`(N, )`

    Examples::

        >>> logits = torch.tensor([[0., 0.]]), torch.tensor([[0., 0.]])
        >>> round(joint_loss(logits, torch.tensor([1])).item(), 4)
        1.3863
    """
    _check_heads(logits)
    _check_labels(labels, logits[0].shape[-1])
    # No index is ignored: cross entropy's usual -100 would count as the smallest loss of the batch.
    ce = torch.stack([F.cross_entropy(at_least_float32(head), labels, reduction="none", ignore_index=_NONE) for head in logits])
    loss = 2 * ce.mean(0)
    return loss + lam * divergences(logits)[0] if lam else loss


def num_kept(batch: int, drop_rate: float) -> int:
    """How many of a batch are kept when ``drop_rate`` of it is dropped: never none.

    Examples::

        >>> num_kept(36, 0.2), num_kept(36, 0.45), num_kept(1, 0.9)
        (28, 19, 1)
    """
    if batch < 1 or not 0 <= drop_rate <= 1:
        raise UserError(f"batch={batch}, drop_rate={drop_rate}: expected at least one sample and a share from 0 to 1")
    # 1e-9: (1 - 0.9) * 10 is 0.9999… in floating point, and should keep one.
    return max(1, int((1.0 - drop_rate) * batch + 1e-9))


def small_loss_mask(values: Tensor, keep: int) -> Tensor:
    r"""True for the ``keep`` samples of the smallest value, :math:`D_s'` of eq. 9-10; ties go to the earlier one.

    Examples::

        >>> small_loss_mask(torch.tensor([3., 1., 2., 1.]), 2)
        tensor([False,  True, False,  True])
    """
    order = torch.argsort(values.detach(), stable=True)
    return torch.zeros_like(values, dtype=torch.bool).index_fill_(0, order[:keep], True)


def separation(value: Tensor, delta: float, m: float = 1.0, clip: Optional[float] = None, inside: float = 0.0) -> Tensor:
    r"""The per-sample separation of eq. 12, which pushes ``value`` away from :math:`\delta` on the side where it is:

    .. math::
        \tilde v = \begin{cases} -|v - \delta| & |v - \delta| > m \\ 0 & \text{otherwise} \end{cases}

    Args:
        delta (float): the border between known and unknown, :math:`\log K`
        m (float): half the width of the dead zone
        clip (float, optional): no push beyond this distance (the authors' code: 2)
        inside (float): the value inside the dead zone; the authors' code has ``-m``, with the same (zero) gradient

    Examples::

        >>> separation(torch.tensor([0.5, 2.5, 9.0]), delta=3.0, clip=2.0)
        tensor([-2.,  0., -2.])
    """
    gap = (value - delta).abs()
    pushed = gap if clip is None else gap.clamp(max=clip)
    return -torch.where(gap > m, pushed, -inside)


class SmallLossSelection(nn.Module):
    r"""Mean source loss over the small-loss part of the batch, eq. 7-10.

    Args:
        drop_rate (float): the share of the batch taken to be wrongly labelled
        lam (float): weight :math:`\lambda` of the divergence

    Inputs:
        - logits (sequence of tensor): one per head
        - labels (tensor): observed labels

    Examples::

        >>> y1, y2 = torch.randn(4, 3), torch.randn(4, 3)
        >>> SmallLossSelection(0.25)((y1, y2), torch.tensor([0, 1, 2, 0])).shape
        torch.Size([])
    """

    def __init__(self, drop_rate: float, lam: float = 0.1):
        super().__init__()
        num_kept(1, drop_rate)  # refuses what is no share
        self.drop_rate, self.lam = drop_rate, lam

    def forward(self, logits: Sequence[Tensor], labels: Tensor) -> Tensor:
        loss = joint_loss(logits, labels, self.lam)
        return loss[small_loss_mask(loss, num_kept(len(loss), self.drop_rate))].mean()


class SeparationLoss(nn.Module):
    r"""Eq. 11: push the target's crs and ent away from :math:`\delta`, as the paper writes it.

    .. math::
        L_t = \frac{1}{N} \sum_i \widetilde{\mathrm{crs}}_i + \frac{1}{N} \sum_i \widetilde{\mathrm{ent}}_i

    Args:
        delta (float): usually :math:`\log K`
        m (float): margin

    Examples::

        >>> SeparationLoss(delta=1.1)((torch.randn(4, 3), torch.randn(4, 3))).shape
        torch.Size([])
    """

    def __init__(self, delta: float, m: float = 1.0):
        super().__init__()
        self.delta, self.m = delta, m

    def forward(self, logits: Sequence[Tensor]) -> Tensor:
        _, crs, ent = divergences(logits)
        if len(crs) == 0:
            raise UserError("the batch is empty: a mean loss needs at least one sample")
        return separation(crs, self.delta, self.m).mean() + separation(ent, self.delta, self.m).mean()
