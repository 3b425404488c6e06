r"""`MLNet: Mutual Learning Network with Neighborhood Invariance for Universal Domain Adaptation (AAAI 2024)
<https://arxiv.org/abs/2312.07871>`_.

OVANet (:mod:`tllib_ext.methods.ovanet`) with three more terms. *Neighbourhood invariance*: the neighbours :math:`N_i` of a
target image are the images whose cosine exceeds :math:`\epsilon` times the largest; each counts by the Jaccard overlap
:math:`J_{ij}` of its own neighbours with those of i. *Cross-domain mixup*: a mixture of a source and a target feature is
not of the source's class. *Consistency* of both heads: a probable class is not denied by its binary classifier:

.. math::
    L_{nbr} &= -\frac{1}{|N_i|} \sum_{j \in N_i} J_{ij} \log \mathrm{softmax}_j(10 \cos(f_i, f_j)) \\
    L_{mix} &= -\log o^0_{y}(b f_s + (1 - b) f_t), \quad b \sim \mathrm{Beta}(2, 2), \qquad
    L_{cc} = -\frac1K \sum_k p_k o^1_k \\
    L &= CE + \tfrac12 L_{ova} + 0.1 L_{ent} + 0.1 L_{mix} + 0.16 L_{cc} + 0.5 L_{nbr},
    \qquad \text{unknown iff } o^0_{\hat y} > \tfrac12

As in the code: no head is normalised; the memory's row of an image is overwritten before its neighbours are sought; the
image itself stays in the softmax, with cosine -1; overlaps are computed anew every 200 of 10000 steps, here at the same
shares of the run, and :math:`L_{nbr}` is 0 before the first time. Overlaps need :math:`N_t^2` numbers. An image without a
positive cosine has no neighbours and a loss of 0 (the code divides by zero). Where the batches differ in size, the mixture
takes as many pairs as the smaller one has.
"""

from dataclasses import dataclass
from typing import Dict, FrozenSet, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Players, hparam
from tllib_ext.methods.context import Context
from tllib_ext.methods.ovanet import OVANet, OVANetHparams, binary_entropy, log_plus, one_vs_all
from tllib_ext.modules.memory import FeatureBank, SampleRows
from tllib_ext.modules.mixup import beta_shares
from tllib_ext.split import LabelSplit

__all__ = ["MLNet", "MLNetHparams", "neighbour_sets", "jaccard"]


@dataclass
class MLNetHparams(OVANetHparams):
    """OVANet's, and the weights of the further terms."""

    mix_weight: float = hparam(0.1, "code", "weight of the cross-domain mixup")
    cc_weight: float = hparam(0.16, "code; VisDA: 0.32", "weight of the consistency of both heads")
    neighbour_weight: float = hparam(0.5, "code", "weight of neighbourhood invariance")
    neighbour_ratio: float = hparam(0.875, "code", "a neighbour's least cosine, relative to the largest")
    rounds: int = hparam(50, "code: every 200 of 10000 steps", "how often the overlaps of neighbours are computed")

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"hyper-parameter rounds={self.rounds}: expected 1 or more")


def neighbour_sets(cosines: Tensor, ratio: float) -> Tensor:
    r"""Which columns are neighbours of each row: cosine above ``ratio`` times the row's largest, which must be positive.

    Shape:
        - cosines: :math:`(B, N)`, -1 at the image itself
        - Outputs: :math:`(B, N)` bool
    """
    largest = cosines.max(1, keepdim=True).values
    return (cosines > ratio * largest) & (largest > 0)


def jaccard(sets: Tensor) -> Tensor:
    r"""Size of the intersection over that of the union, for all pairs of rows; 0 for two empty ones.

    Shape:
        - sets: :math:`(N, M)` bool
        - Outputs: :math:`(N, N)`

    Examples::

        >>> jaccard(torch.tensor([[True, True, False], [False, True, True]]))[0, 1].item()
        0.3333333432674408
    """
    members = sets.float()
    both, sizes = members @ members.t(), members.sum(1)
    return both / (sizes[:, None] + sizes - both).clamp(min=1)


class MLNet(OVANet):
    """One-vs-all classifiers, neighbourhood invariance and cross-domain mixup."""

    Hparams = MLNetHparams
    hparams: MLNetHparams
    presets = {"default": {}, "code": {"decay_to_last": True}}
    training_only = ("bank.", "overlaps.")

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[MLNetHparams] = None):
        super().__init__(backbone, split, hparams)
        self.bank = FeatureBank(self.features_dim)
        self.overlaps = SampleRows(0)
        self._rounds: FrozenSet[int] = frozenset()

    def prepare(self, context: Context) -> None:
        u = F.normalize(context.whole("target").to(self.bank.rows), dim=1)
        self.overlaps.resize(context.num_target, context.num_target)
        self.bank.resize(context.num_target)
        self.bank.rows.copy_(u)
        self._rounds = frozenset(round(context.steps * i / self.hparams.rounds) for i in range(1, self.hparams.rounds))

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp = self.hparams
        f_s, f_t = self.backbone(source.x), self.backbone(target.x)
        logits = self.closed(f_s)
        ce = F.cross_entropy(logits.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits])
        positive, negative = one_vs_all(self._one_vs_all(f_s), source.labels, hp.eps)
        open_t = self._one_vs_all(f_t)
        known = open_t.float().softmax(1)[:, 1]
        consistency = -(self.closed(f_t).float().softmax(1) * known).mean(1)
        self.bank.write(f_t, target.index)
        terms = {
            "source": pooled_mean(ce),
            "ova": hp.ova_weight * pooled_mean(positive + negative),
            "entropy": hp.lam * pooled_mean(binary_entropy(open_t, hp.eps)),
            "mix": hp.mix_weight * pooled_mean(self._mixup(f_s, source.labels, f_t)),
            "consistency": hp.cc_weight * pooled_mean(consistency),
            "neighbours": hp.neighbour_weight * pooled_mean(self._neighbours(f_t, target.index)),
        }
        play.descend(terms, "G", "C")
        if step + 1 in self._rounds:
            self.overlaps.rows.copy_(jaccard(neighbour_sets(self._cosines(self.bank.rows, None), hp.neighbour_ratio)))
        return {"loss": terms["source"].detach(), **{name: value.detach() for name, value in terms.items() if name != "source"}}

    def _mixup(self, f_s: Tensor, labels: Tensor, f_t: Tensor) -> Tensor:
        pairs = min(len(f_s), len(f_t))
        b = beta_shares(2, pairs, 1, device=f_s.device)
        mixed = self._one_vs_all(b * f_s[:pairs] + (1 - b) * f_t[:pairs])
        log_not = log_plus(F.log_softmax(mixed.float(), dim=1), self.hparams.eps)[:, 0]
        return -log_not.gather(1, labels[:pairs, None]).squeeze(1)

    def _cosines(self, u: Tensor, index: Optional[Tensor]) -> Tensor:
        """Cosines to the memory, -1 at the image itself."""
        index = torch.arange(len(u), device=u.device) if index is None else index
        return (u @ self.bank.rows.t()).float().scatter(1, index[:, None], -1.0)

    def _neighbours(self, f: Tensor, index: Tensor) -> Tensor:
        cosines = self._cosines(F.normalize(f.float(), dim=1), index)
        near = neighbour_sets(cosines.detach(), self.hparams.neighbour_ratio)
        log_p = log_plus(F.log_softmax(10 * cosines, dim=1), 1e-8)
        return -(near * self.overlaps.rows[index] * log_p).sum(1) / near.sum(1).clamp(min=1)
