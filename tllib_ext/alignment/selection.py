r"""The source loss of two heads and the selection of the samples with a small one: Step A-1 of divergence optimisation."""

from typing import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.alignment.quantities import at_least_float32, check_heads, check_reduction, divergences, reduced
from tllib_ext.distributed import gather_rows, rank
from tllib_ext.errors import UserError

__all__ = ["SmallLossSelection", "joint_loss", "num_kept", "pooled_small_loss", "small_loss_mask"]

#: a label that cannot occur.
_NONE = -(2**62)


def joint_loss(logits: Sequence[Tensor], labels: Tensor, lam: float = 0.1) -> Tensor:
    r"""The loss of each source sample (eq. 8): the heads' cross entropies (eq. 7) and their divergence,

    .. math::
        L_s(x, y) = CE(p_1, y) + CE(p_2, y) + \lambda\, \mathrm{skld}(x)

    Args:
        lam (float): weight :math:`\lambda` of the divergence

    Shape:
        - logits: :math:`(N, K)` each; labels: :math:`(N, )`
        - Outputs: :math:`(N, )`

    Examples::

        >>> logits = torch.tensor([[0., 0.]]), torch.tensor([[0., 0.]])
        >>> round(joint_loss(logits, torch.tensor([1])).item(), 4)
        1.3863
    """
    check_heads(logits)
    _check_labels(labels, logits[0].shape[-1])
    # No index is ignored: cross entropy's usual -100 would count as the smallest loss of the batch.
    ce = [F.cross_entropy(at_least_float32(head), labels, reduction="none", ignore_index=_NONE) for head in logits]
    loss = 2 * torch.stack(ce).mean(0)
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
    r"""True for the ``keep`` samples of the smallest value, :math:`D_s'` (eq. 9); ties go to the earlier one.

    Examples::

        >>> small_loss_mask(torch.tensor([3., 1., 2., 1.]), 2)
        tensor([False,  True, False,  True])
    """
    order = torch.argsort(values.detach(), stable=True)
    return torch.zeros_like(values, dtype=torch.bool).index_fill_(0, order[:keep], True)


def pooled_small_loss(values: Tensor, drop_rate: float) -> Tensor:
    """Mask of this process's samples that are among the small-loss part of the batch of all processes.

    Examples::

        >>> pooled_small_loss(torch.tensor([3., 1., 2., 1.]), 0.5)
        tensor([False,  True, False,  True])
    """
    everyone = gather_rows(values)
    mask = small_loss_mask(everyone, num_kept(len(everyone), drop_rate))
    return mask[rank() * len(values) : (rank() + 1) * len(values)]


class SmallLossSelection(nn.Module):
    r"""The source loss over the samples of smallest loss, which G and both heads minimise in Step A-1 (eq. 10) of
    `Divergence Optimization for Noisy Universal Domain Adaptation (CVPR 2021) <https://arxiv.org/abs/2104.00246>`_.

    Networks learn right labels before wrong ones, and two heads rarely make the same mistake: a wrong label has a large
    :func:`joint_loss` :math:`L_s`. Of a batch :math:`D_s` the part :math:`D_s'` of smallest loss is learnt,

    .. math::
        L_s(D_s') = \frac{1}{|D_s'|} \sum_{(x, y) \in D_s'} L_s(x, y), \qquad |D_s'| = \lfloor (1 - r)\, |D_s| \rfloor

    Where ``torch.distributed`` runs, :math:`D_s` is the batch of all processes, which hold equal parts of it.

    Args:
        drop_rate (float): r, the share of the batch taken to be wrongly labelled
        lam (float, optional): weight :math:`\lambda` of the divergence in :math:`L_s`. Default: 0.1
        reduction (str, optional): Specifies the reduction to apply to the output: ``'none'`` | ``'mean'`` | ``'sum'``.
            ``'none'``: the loss of each sample, zero outside :math:`D_s'`, ``'mean'``: the mean over :math:`D_s'`,
            ``'sum'``: the sum over :math:`D_s'`. Default: ``'mean'``

    Inputs:
        - logits (sequence of tensor): one per head, of the source batch
        - labels (tensor): observed labels

    Outputs:
        - the loss; where more is needed, :meth:`losses`, :meth:`kept` and :meth:`reduce` are its three parts

    Shape:
        - logits: :math:`(N, K)` each; labels: :math:`(N, )`
        - Outputs: scalar. If :attr:`reduction` is ``'none'``: :math:`(N, )`

    Examples::

        >>> y1, y2, labels = torch.randn(36, 20), torch.randn(36, 20), torch.randint(20, (36,))
        >>> selection = SmallLossSelection(drop_rate=0.2)
        >>> loss = selection((y1, y2), labels)
        >>> selection.kept(selection.losses((y1, y2), labels)).sum()
        tensor(28)
    """

    def __init__(self, drop_rate: float, lam: float = 0.1, reduction: str = "mean"):
        super().__init__()
        num_kept(1, drop_rate)  # refuses what is no share
        self.drop_rate, self.lam, self.reduction = drop_rate, lam, check_reduction(reduction)

    def losses(self, logits: Sequence[Tensor], labels: Tensor) -> Tensor:
        """:func:`joint_loss` of each sample."""
        return joint_loss(logits, labels, self.lam)

    def kept(self, losses: Tensor) -> Tensor:
        r"""Mask of :math:`D_s'`."""
        return pooled_small_loss(losses, self.drop_rate)

    def reduce(self, losses: Tensor, kept: Tensor) -> Tensor:
        r"""The losses, possibly weighted, of :math:`D_s'` by :attr:`reduction`."""
        return reduced(losses, self.reduction, kept)

    def forward(self, logits: Sequence[Tensor], labels: Tensor) -> Tensor:
        losses = self.losses(logits, labels)
        return self.reduce(losses, self.kept(losses))


def _check_labels(labels: Tensor, num_classes: int) -> None:
    if len(labels) == 0:
        raise UserError("the batch is empty: a mean loss needs at least one sample")
    # Only on a CPU: elsewhere the check would wait for the device, whose own assertion follows.
    if labels.device.type == "cpu" and not bool(((labels >= 0) & (labels < num_classes)).all()):
        raise UserError(f"labels run from {int(labels.min())} to {int(labels.max())}: expected 0..{num_classes - 1}")
