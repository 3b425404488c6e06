r"""`Prototypical Partial Optimal Transport for Universal Domain Adaptation (PPOT, AAAI 2023)
<https://arxiv.org/abs/2408.01089>`_.

Entropic partial transport :math:`\pi` moves the mass :math:`\alpha` between the prototypes c of the source classes, with at most
:math:`\alpha / (\beta K)` each, and the target batch. :math:`\alpha` estimates the share of known target images, those with
:math:`\max p > 0.9`; :math:`\beta` the share of source classes that the target has. What the plan leaves out is unknown or
source-private:

.. math::
    L &= \overline{w_y CE} + \eta_1 \sqrt{\langle \pi, \|c - u\|^2 \rangle}
    + \eta_2 \overline{k_i H(p_i)} - \eta_3 \overline{h_i H(p_i)} \\
    w &\propto \mathrm{EMA}(\pi 1), \qquad k_i = B \pi_{\cdot i} / \alpha, \qquad
    h_i = 1 - k_i \text{ for the quarter of the batch farthest from all prototypes, else } 0

with unit features u, and p of the fixed head in the entropy terms. Prototypes follow the batch (EMA 0.1); at five shares of the
run they, and :math:`\alpha`, are computed anew from all images. Unknown: :math:`\max p < 0.75`.

Ours differs from the authors' code in this: learning rate and weight decay are the run's (the code has 2e-4 and, by a factor
of ten, 0.01); the first stage is a share of the run; :math:`\alpha` is at least 0.01 and :math:`\beta` at least 1/K (the code
divides by zero). The code reports the best epoch on target labels and the H-score of the instance accuracy.
"""

from dataclasses import dataclass
from typing import Dict, FrozenSet, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.alignment.transport import partial_transport
from tllib_ext.distributed import gather_rows, pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.adversarial import entropy
from tllib_ext.modules.memory import gather_with_grad
from tllib_ext.split import LabelSplit

__all__ = ["Ppot", "PpotHparams"]


@dataclass
class PpotHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    transport: float = hparam(5.0, "code: ot", "eta_1, weight of the transport's cost")
    known_entropy: float = hparam(0.01, "code: p-entropy", "eta_2, weight of the entropy of transported images")
    unknown_entropy: float = hparam(2.0, "code: n-entropy", "eta_3, weight of the negative entropy of far images")
    far: float = hparam(0.25, "code: neg", "share of the batch that counts as far")
    eps: float = hparam(0.01, "code: reg", "weight of the plan's own entropy")
    sure: float = hparam(0.9, "code: tau1", "confidence of an image that counts for alpha")
    momentum: float = hparam(0.1, "code: tau", "update of prototypes and class weights by a batch")
    alpha_momentum: float = hparam(0.001, "code", "update of alpha by a batch")
    beta_momentum: float = hparam(0.01, "code", "update of beta by a batch")
    source_share: float = hparam(1 / 6, "code: 1000 of 6000 steps", "share of the run that learns the source only")
    rounds: int = hparam(5, "code: every epoch of 5", "how often prototypes and alpha are computed from all images")
    bottleneck: int = hparam(256, "code", "width of the feature")
    unknown_threshold: float = hparam(0.75, "code", "least confidence of a known image")

    def __post_init__(self) -> None:
        if not (0 < self.source_share < 1 and 0 <= self.far <= 1) or self.rounds < 1:
            raise UserError(
                f"source_share={self.source_share}, far={self.far}, rounds={self.rounds}: expected shares, and 1 or more"
            )


class Ppot(Method):
    """Partial transport between source prototypes and target batches."""

    Hparams = PpotHparams
    hparams: PpotHparams
    training_only = ("prototypes", "class_weights", "alpha", "beta")
    context: Context
    prototypes: Tensor
    class_weights: Tensor
    alpha: Tensor
    beta: Tensor

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[PpotHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.bottleneck = nn.Sequential(nn.Linear(self.features_dim, hp.bottleneck), nn.BatchNorm1d(hp.bottleneck), nn.ReLU())
        self.head = nn.Linear(hp.bottleneck, k)
        self.register_buffer("prototypes", torch.zeros(k, hp.bottleneck))
        self.register_buffer("class_weights", torch.ones(k))
        self.register_buffer("alpha", torch.tensor(1.0))
        self.register_buffer("beta", torch.tensor(1.0))
        self.rule = EntropyRule(k, "confidence", hp.unknown_threshold)
        self.threshold = self.rule.threshold
        self._first = 1
        self._rounds: FrozenSet[int] = frozenset()

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        context.need("source_features", "target_features", "source_labels")
        self._first = max(1, round(self.hparams.source_share * context.steps))
        self._rounds = frozenset(context.rounds(self.hparams.rounds, self._first))

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        if step in self._rounds:
            self._look_at_all(step == self._first)
        z_s = self.bottleneck(self.backbone(source.x))
        logits = self.head(z_s).float()
        ce = F.cross_entropy(logits, source.labels, reduction="none")
        self.observe(source, ce, [logits])
        if step < self._first:
            return {"loss": play.descend({"source": pooled_mean(ce)}, "G", "C")}
        z_t = self.bottleneck(self.backbone(target.x))
        terms = self._losses(gather_with_grad(z_s), gather_rows(source.labels), gather_with_grad(z_t))  # of the global batch
        play.descend(terms, "G", "C")
        log = {name: value.detach() for name, value in terms.items() if name != "source"}
        return {"loss": terms["source"].detach(), "alpha": self.alpha.clone(), "beta": self.beta.clone(), **log}

    def _losses(self, z_s: Tensor, labels: Tensor, z_t: Tensor) -> Dict[str, Tensor]:
        hp, (k, size) = self.hparams, (len(self.prototypes), len(z_t))
        logits_t = F.linear(z_t, self.head.weight.detach(), self.head.bias.detach()).float()  # the head is fixed here
        sure = (logits_t.detach().softmax(1).max(1).values >= hp.sure).to(self.alpha).mean()
        self.alpha.lerp_(sure, hp.alpha_momentum).clamp_(min=0.01)

        members = F.one_hot(labels, k).to(self.prototypes).t()
        means = members @ F.normalize(z_s.to(self.prototypes), dim=1) / members.sum(1, keepdim=True).clamp(min=1)
        means = torch.where(members.sum(1, keepdim=True) > 0, means, self.prototypes)
        prototypes = F.normalize((1 - hp.momentum) * self.prototypes + hp.momentum * means, dim=1)
        self.prototypes.copy_(prototypes.detach())

        cost = torch.cdist(prototypes, F.normalize(z_t.to(prototypes), dim=1)).square()
        largest = cost.detach().max().clamp(min=1e-12)
        a = (self.alpha / self.beta / k).expand(k)
        plan = partial_transport(cost.detach() / largest, a, torch.full_like(cost[0], 1 / size), self.alpha, hp.eps).to(
            self.alpha
        )
        self.class_weights.lerp_(plan.sum(1) * size, hp.momentum)
        self.class_weights.mul_(k / self.class_weights.sum())
        self.beta.lerp_((self.class_weights > 1).to(self.beta).mean(), hp.beta_momentum).clamp_(min=1 / k)

        moved = plan.sum(0) * size / self.alpha
        farthest = cost.detach().min(0).values.topk(round(hp.far * size)).indices
        left = torch.zeros_like(moved).scatter(0, farthest, 1.0) * (1 - moved)
        h = entropy(logits_t)
        return {
            "source": F.cross_entropy(self.head(z_s).float(), labels, weight=self.class_weights.float()),
            "transport": hp.transport * ((plan * cost).sum() + 1e-12).sqrt(),
            "known": hp.known_entropy * (moved * h).mean(),
            "unknown": -hp.unknown_entropy * (left * h).mean(),
        }

    @torch.no_grad()
    def _look_at_all(self, first: bool) -> None:
        """Prototypes from the whole source, alpha from the whole target, in evaluation mode."""
        context = self.context
        u, z = (self.over_whole(domain, self.bottleneck) for domain in ("source", "target"))
        members = F.one_hot(torch.as_tensor(context.source_labels), len(self.prototypes)).to(u).t()
        if context.source_weights is not None:
            members = members * torch.as_tensor(context.source_weights).to(u)
        self.prototypes.copy_(F.normalize(members @ F.normalize(u, dim=1), dim=1))
        self.alpha.copy_((self.head(z).softmax(1).max(1).values >= self.hparams.sure).float().mean().clamp(min=0.01))
        if first:
            self.beta.copy_(self.alpha.clamp(min=1 / len(self.prototypes)))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        return self.rule(self.head(self.bottleneck(self.backbone(x))))
