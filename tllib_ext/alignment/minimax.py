r"""The game of two heads against the generator on the target, and the rule for unknown samples: Steps B and C of divergence
optimisation, and its inference."""

from typing import Optional, Sequence

import torch
from torch import Tensor, nn

from tllib_ext.alignment.quantities import check_reduction, cross_divergence, reduced
from tllib_ext.errors import UserError

__all__ = ["HeadMinimax", "unknown_by_divergence"]


class HeadMinimax(nn.Module):
    r"""The game between the heads and G in Steps B and C of
    `Divergence Optimization for Noisy Universal Domain Adaptation (CVPR 2021) <https://arxiv.org/abs/2104.00246>`_.

    In Step B the heads, with G fixed, are driven :meth:`apart` on the target while they learn the source (eq. 13); they
    then disagree where a target sample has no support of source samples. In Step C G, with the heads fixed, brings them
    :meth:`together` again on the target samples that look :meth:`known` (eq. 14), which aligns the domains in part:

    .. math::
        \text{B:} \quad & \min_{F_1, F_2} L_s(D_s') - \frac{1}{N} \sum_{x \in D_t} \mathrm{crs}(x) \\
        \text{C:} \quad & \min_G \frac{1}{N} \sum_{x \in D_t'} \mathrm{crs}(x), \qquad
        D_t' = \{x \in D_t : \mathrm{crs}(x) < \delta - m\}

    with crs of :func:`~tllib_ext.alignment.divergence.cross_divergence`. Who is fixed is the caller's affair: in Step B the
    logits are of detached features, in Step C only G steps. By default this is the paper's text; the authors' code is
    ``HeadMinimax(delta, clamp=2.0, over="selected")`` with a weight of 0.05 on both terms.

    Args:
        delta (float): border :math:`\delta` between known and unknown, usually :math:`\log K`; may be set between steps
        known_margin (float, optional): m of :math:`D_t'`. Default: 1.0
        clamp (float, optional): crs counts at most this times :math:`\delta`, beyond which there is no gradient.
            Default: None, no limit
        over (str, optional): the mean of :meth:`together` is over the whole ``'batch'``, N, or over the ``'selected'``
            samples, :math:`|D_t'|`. Default: ``'batch'``
        reduction (str, optional): Specifies the reduction to apply to the output: ``'none'`` | ``'mean'`` | ``'sum'``.
            ``'none'``: the term of each sample, zero outside :math:`D_t'` in Step C. Default: ``'mean'``

    Inputs (of the methods; the module itself is not called):
        - logits (sequence of tensor): one per head, of the target batch
        - known (tensor): mask of :math:`D_t'`, found once before the first of the steps

    Shape:
        - logits: :math:`(N, K)` each; known: :math:`(N, )` bool
        - Outputs: scalar. If :attr:`reduction` is ``'none'``: :math:`(N, )`

    Examples::

        >>> sure, doubt = torch.tensor([9., 0., 0.]), torch.zeros(3)
        >>> logits = torch.stack([sure, doubt]), torch.stack([sure, doubt])
        >>> minimax = HeadMinimax(delta=1.1)
        >>> known = minimax.known(logits); known
        tensor([ True, False])
        >>> round(minimax.apart(logits).item(), 2), round(minimax.together(logits, known).item(), 2)
        (-1.1, 0.0)
    """

    def __init__(
        self, delta: float, known_margin: float = 1.0, clamp: Optional[float] = None, over: str = "batch", reduction: str = "mean"
    ):
        super().__init__()
        if over not in ("batch", "selected"):
            raise UserError(f"over={over!r}: expected batch or selected")
        self.delta, self.known_margin, self.clamp, self.over = delta, known_margin, clamp, over
        self.reduction = check_reduction(reduction)

    def crs(self, logits: Sequence[Tensor]) -> Tensor:
        """The clamped crs of each sample."""
        crs = cross_divergence(logits)
        return crs if self.clamp is None else crs.clamp(max=self.clamp * self.delta)

    def known(self, logits: Sequence[Tensor]) -> Tensor:
        r"""Mask of :math:`D_t'`, the target samples that look known."""
        return cross_divergence(logits) < self.delta - self.known_margin

    def apart(self, logits: Sequence[Tensor]) -> Tensor:
        """What the heads minimise on the target in Step B: minus crs."""
        return -reduced(self.crs(logits), self.reduction)

    def together(self, logits: Sequence[Tensor], known: Tensor) -> Tensor:
        r"""What G minimises in Step C: crs of :math:`D_t'`."""
        crs = self.crs(logits)
        if self.over == "selected" or self.reduction != "mean":
            return reduced(crs, self.reduction, known)
        return reduced(torch.where(known, crs, torch.zeros_like(crs)), "mean")


def unknown_by_divergence(logits: Sequence[Tensor], delta: float) -> Tensor:
    r"""Mask of the samples that are called unknown, those with :math:`\mathrm{crs}(x) > \delta` (eq. 15).

    Args:
        delta (float): the border of training, usually :math:`\log K`

    Shape:
        - logits: :math:`(N, K)` each
        - Outputs: :math:`(N, )` bool

    Examples::

        >>> sure, doubt = torch.tensor([9., 0., 0.]), torch.zeros(3)
        >>> unknown_by_divergence((torch.stack([sure, doubt]), torch.stack([sure, doubt])), delta=1.1)
        tensor([False,  True])
    """
    return cross_divergence(logits) > delta
