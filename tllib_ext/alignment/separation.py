r"""The separation of target samples into known and unknown ones: Step A-2 of divergence optimisation."""

from typing import Dict, Optional, Sequence

import torch
from torch import Tensor, nn

from tllib_ext.alignment.quantities import check_reduction, cross_divergence, divergences, mean_distribution_entropy, reduced
from tllib_ext.errors import UserError

__all__ = ["TargetSeparation", "separation"]


def separation(value: Tensor, delta: float, m: float = 1.0, clip: Optional[float] = None, inside: float = 0.0) -> Tensor:
    r"""Pushes each value away from :math:`\delta` on the side where it is, unless it is within the dead zone:

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


class TargetSeparation(nn.Module):
    r"""Separates the target samples that look known from those that look unknown (eq. 11), which G and both heads minimise
    in Step A-2 (eq. 12) of
    `Divergence Optimization for Noisy Universal Domain Adaptation (CVPR 2021) <https://arxiv.org/abs/2104.00246>`_.

    .. math::
        L_t(D_t) = \frac{1}{N} \sum_{i=1}^N \widetilde{\mathrm{crs}}(x_i) + \frac{1}{N} \sum_{i=1}^N \widetilde{\mathrm{ent}}(x_i)

    with crs and ent of :func:`~tllib_ext.alignment.divergence.divergences` and the tilde of :func:`separation`. By
    default this is the paper's text. The authors' code is ``TargetSeparation(delta, clip=2.0, valid=2.0,
    entropy="mean_dist", ent_weight=0.5, eps=1e-5)`` with a weight of 0.05 in the sum of losses.

    Args:
        delta (float): border :math:`\delta` between known and unknown, usually :math:`\log K`; may be set between steps
        m (float, optional): half the width of the dead zone. Default: 1.0
        clip (float, optional): no push of crs beyond this distance from :math:`\delta`. Default: None, no limit
        valid (float, optional): the crs part is over the samples with crs below this times :math:`\delta`. Default: None, all
        entropy (str, optional): ``'sum'``: the entropies of the heads, ``'mean_dist'``: that of their mean distribution
            (:func:`~tllib_ext.alignment.divergence.mean_distribution_entropy`). Default: ``'sum'``
        crs_weight (float, optional), ent_weight (float, optional): weights of the two parts; a part of weight zero is left
            out. Default: 1.0 each
        eps (float, optional): inside the logarithm of ``'mean_dist'``. Default: 0.0, exact
        inside (float, optional): the value in the dead zone (the authors' code: ``-m``), without influence on gradients.
            Default: 0.0
        reduction (str, optional): Specifies the reduction to apply to the output: ``'none'`` | ``'mean'`` | ``'sum'``.
            ``'none'``: the weighted sum of both parts for each sample, ``'mean'``: the mean of each part over its samples,
            ``'sum'``: the sum over the samples. Default: ``'mean'``

    Inputs:
        - logits (sequence of tensor): one per head, of the target batch

    Outputs:
        - the loss, the sum of what :meth:`parts` returns by name

    Shape:
        - logits: :math:`(N, K)` each
        - Outputs: scalar. If :attr:`reduction` is ``'none'``: :math:`(N, )`

    Examples::

        >>> sure = torch.tensor([[19., 0., 0.]])
        >>> separate = TargetSeparation(delta=1.1)
        >>> round(separate((sure, sure)).item(), 2)  # crs and ent are 0, delta below their border, and stay there
        -2.2
        >>> {name: round(part.item(), 2) for name, part in separate.parts((sure, sure)).items()}
        {'crs': -1.1, 'ent': -1.1}
    """

    def __init__(
        self,
        delta: float,
        m: float = 1.0,
        clip: Optional[float] = None,
        valid: Optional[float] = None,
        entropy: str = "sum",
        crs_weight: float = 1.0,
        ent_weight: float = 1.0,
        eps: float = 0.0,
        inside: float = 0.0,
        reduction: str = "mean",
    ):
        super().__init__()
        if entropy not in ("sum", "mean_dist"):
            raise UserError(f"entropy={entropy!r}: expected sum or mean_dist")
        self.delta, self.m, self.clip, self.valid, self.entropy = delta, m, clip, valid, entropy
        self.crs_weight, self.ent_weight, self.eps, self.inside = crs_weight, ent_weight, eps, inside
        self.reduction = check_reduction(reduction)

    def parts(self, logits: Sequence[Tensor]) -> Dict[str, Tensor]:
        """The weighted parts ``crs`` and ``ent``; one of weight zero is absent."""
        if len(logits[0]) == 0:
            raise UserError("the batch is empty: a mean loss needs at least one sample")
        parts: Dict[str, Tensor] = {}
        if self.crs_weight:
            parts["crs"] = self.crs_weight * self._crs(logits)
        if self.ent_weight:
            parts["ent"] = self.ent_weight * self._ent(logits)
        return parts

    def forward(self, logits: Sequence[Tensor]) -> Tensor:
        return sum(self.parts(logits).values(), logits[0].new_zeros(()))

    def _crs(self, logits: Sequence[Tensor]) -> Tensor:
        crs = cross_divergence(logits)
        valid = None if self.valid is None else crs.detach() < self.valid * self.delta
        return reduced(separation(crs, self.delta, self.m, self.clip, self.inside), self.reduction, valid)

    def _ent(self, logits: Sequence[Tensor]) -> Tensor:
        ent = divergences(logits)[2] if self.entropy == "sum" else mean_distribution_entropy(logits, self.eps)
        return reduced(separation(ent, self.delta, self.m, inside=self.inside), self.reduction)
