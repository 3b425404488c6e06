r"""`Learning to Detect Open Classes for Universal Domain Adaptation (CMU, ECCV 2020)
<https://arxiv.org/abs/2007.11960>`_, calibrated multiple uncertainties.

An ensemble of five heads with outputs :math:`q^m` measures three uncertainties of a target image; adversarial training
is weighted by them on the target and, on the source, by how probable each class is among certain target images:

.. math::
    u_{ent} &= \frac15 \sum_m H(q^m) / \log K, \qquad u_{cons} = \frac1K \sum_k \mathrm{std}_m(q^m_k), \qquad
    c = \frac15 \sum_m \max_k q^m_k \\
    w_t &= \tfrac13 (1 - u_{ent} + 1 - u_{cons} + c), \qquad
    v_k = \mathrm{scale}_k\ \mathrm{mean}\{p_k(x_t) : \bar w_t \ge w_0\} \\
    L &= CE + \tfrac12 [\overline{v_y \log(1/d_s)} + \overline{w_t \log(1/(1 - d_t))}],
    \qquad \text{unknown iff } \bar w_t < w_0

:math:`\bar w_t` is made of components scaled to [0, 1] over the whole target; std is the unbiased one, as in the code.
This follows the authors' tree ``new``: their tree ``current`` takes the common classes from the truth. Ours differs in
this: the heads learn at every step, from features without gradient and with a dropout mask each (the code has five image
augmentations, and 500 iterations per head and epoch); v is computed at shares of the run; it is 1 where no target image is
certain (the code divides by zero).
"""

import math
from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Optional, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.modules.adversarial import DomainDiscriminator, domain_loss, gradient_reverse, grl_coefficient
from tllib_ext.split import LabelSplit

__all__ = ["Cmu", "CmuHparams", "uncertainties"]

HEADS = 5


@dataclass
class CmuHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    w_0: float = hparam(0.5, "paper §4, code: tree new", "an image with a smaller scaled certainty is unknown")
    trade_off: float = hparam(1.0, "code", "weight of the adversarial loss")
    warmup: float = hparam(0.05, "code: 1 of 21 epochs", "share of the run without adversarial training")
    rounds: int = hparam(20, "code: every epoch", "how often the class weights are computed")
    dropout: float = hparam(0.5, "ours; code: image augmentations", "of the features that the ensemble learns from")
    grl_gamma: float = hparam(20.0, "code: 1/1000 per iteration of 20000", "speed of the reversal's growth")
    bottleneck: int = hparam(256, "code", "width of z")
    hidden: int = hparam(1024, "code", "width of the discriminator's hidden layers")

    def __post_init__(self) -> None:
        if not (0 < self.w_0 < 1 and 0 <= self.warmup < 1 and 0 <= self.dropout < 1) or self.rounds < 1:
            raise UserError(f"w_0={self.w_0}, warmup={self.warmup}, dropout={self.dropout}, rounds={self.rounds}: "
                            f"expected shares, and 1 or more")  # fmt: skip


def uncertainties(logits: Tensor) -> Tensor:
    r"""Certainties of an ensemble, each high for a known image: :math:`1 - u_{ent}`, :math:`1 - u_{cons}` and c.

    Shape:
        - logits: :math:`(M, N, K)` of M heads
        - Outputs: :math:`(N, 3)`

    Examples::

        >>> uncertainties(torch.tensor([[[50., 0.]], [[50., 0.]]])).tolist()
        [[1.0, 1.0, 1.0]]
    """
    q = logits.float().softmax(-1)
    entropy = torch.special.entr(q).sum(-1).mean(0) / math.log(q.shape[-1])
    return torch.stack([1 - entropy, 1 - q.std(0).mean(-1), q.max(-1).values.mean(0)], dim=1)


class Cmu(Method):
    """Adversarial training weighted by three calibrated uncertainties."""

    Hparams = CmuHparams
    hparams: CmuHparams
    training_only = ("class_weights", "discriminator.")
    threshold: float
    class_weights: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[CmuHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.bottleneck = nn.Sequential(nn.Linear(self.features_dim, hp.bottleneck), nn.BatchNorm1d(hp.bottleneck), nn.ReLU())
        self.head = nn.Linear(hp.bottleneck, k)
        self.ensemble = nn.ModuleList(nn.Linear(hp.bottleneck, k) for _ in range(HEADS))
        others = [cast(nn.Linear, head).weight for head in self.ensemble][1:]  # the first keeps PyTorch's initialisation
        nn.init.xavier_uniform_(others[0])
        nn.init.xavier_normal_(others[1])
        nn.init.kaiming_uniform_(others[2])
        nn.init.kaiming_normal_(others[3])
        self.discriminator = DomainDiscriminator(hp.bottleneck, hp.hidden, "batch_norm")
        self.register_buffer("class_weights", torch.ones(k))
        self.register_buffer("low", torch.zeros(3))  # of the certainties over the whole target
        self.register_buffer("high", torch.ones(3))
        self.threshold = 1 - hp.w_0
        self._rounds: FrozenSet[int] = frozenset()

    def players(self) -> Dict[str, List[ParamGroup]]:
        heads = [*self.bottleneck.parameters(), *self.head.parameters(), *self.ensemble.parameters()]
        return {"G": self.backbone_groups(), "C": [{"params": heads}], "D": [{"params": self.discriminator.parameters()}]}

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        context.need("target_features")
        rounds = self.hparams.rounds
        self._rounds = frozenset(int(context.steps * (i + 0.5) / rounds) for i in range(rounds))

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp = self.hparams
        if step in self._rounds:
            self._weigh_classes()
        z_s, z_t = self.bottleneck(self.backbone(source.x)), self.bottleneck(self.backbone(target.x))
        logits = self.head(z_s)
        ce = F.cross_entropy(logits.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits])
        views = [F.cross_entropy(head(F.dropout(z_s.detach(), hp.dropout)).float(), source.labels, reduction="none")
                 for head in self.ensemble]  # fmt: skip
        terms = {"source": pooled_mean(ce), "ensemble": pooled_mean(torch.stack(views).sum(0))}
        w_t = uncertainties(self._ensemble(z_t.detach())).mean(1).detach()
        if step >= hp.warmup * self.steps:
            coefficient = grl_coefficient(step / self.steps, hp.grl_gamma)
            d = self.discriminator(gradient_reverse(torch.cat([z_s, z_t]), coefficient))
            of_source = self.class_weights[source.labels] * domain_loss(d[: len(z_s)], True)
            of_target = w_t * domain_loss(d[len(z_s) :], False)
            terms["adversarial"] = hp.trade_off * (pooled_mean(of_source) + pooled_mean(of_target)) / 2
        play.descend(terms, "G", "C", "D")
        return {"loss": terms["source"].detach(), "w_t": w_t.mean(), "ensemble": terms["ensemble"].detach()}

    def _ensemble(self, z: Tensor) -> Tensor:
        return torch.stack([head(z) for head in self.ensemble])

    @torch.no_grad()
    def _weigh_classes(self) -> None:
        z = self.over_whole("target", self.bottleneck)
        certain = uncertainties(self._ensemble(z))
        low, high = certain.amin(0), certain.amax(0)
        chosen = ((certain - low) / (high - low).clamp(min=1e-12)).mean(1) >= self.hparams.w_0
        mean = (self.head(z).softmax(1) * chosen[:, None]).sum(0) / chosen.sum().clamp(min=1)
        scaled = (mean - mean.min()) / (mean.max() - mean.min()).clamp(min=1e-12)
        self.class_weights.copy_(torch.where(chosen.any(), scaled, torch.ones_like(scaled)))

    @torch.no_grad()
    def refresh(self) -> None:
        if self.context is not None:
            certain = uncertainties(self._ensemble(self.over_whole("target", self.bottleneck)))
            self.low.copy_(certain.amin(0))
            self.high.copy_(certain.amax(0))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        z = self.bottleneck(self.backbone(x))
        certain = (uncertainties(self._ensemble(z)) - self.low) / (self.high - self.low).clamp(min=1e-12)
        score = 1 - certain.mean(1)
        return Prediction(self.head(z).float().softmax(-1), score, score > self.threshold)
