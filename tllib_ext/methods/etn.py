r"""`Learning to Transfer Examples for Partial Domain Adaptation (CVPR 2019) <https://arxiv.org/abs/1903.12230>`_: ETN.

Source samples that look like no target sample (private classes) count less, in the classifier's loss too::

    a_k = exp(o_k) / (K + sum_j exp(o_j)),  A = sum_k a_k                leaky softmax of an auxiliary head on z, no gradient to z
    w_i = (1 - A(x_i)) / mean_j (1 - A(x_j))                             source only, no gradient
    loss = mean w CE(x_s) + mean -w log D(z_s) + mean -log(1 - D(z_t)) + 0.2 mean H(p_t)
           + 10 [mean -log A(x_s) + mean -log(1 - A(x_t))] + mean sum_k BCE(a_k, 1[y = k])

D sits behind a gradient reversal. The auxiliary head learns domains and classes at once: A near 1 means "certainly source",
so w is small. The weights of the terms are the released OfficeHome configuration, the only one there is. The
authors' code keeps the best step on target labels; here as everywhere the last step counts. Its reversal advances
at every forward pass, twice per iteration. Everything is computed from logits: logit A = logsumexp(o) - log K.
ETN has no notion of unknown: the customary entropy rule decides.
"""

import math
from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import gather_rows, pooled_mean
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.adversarial import DomainDiscriminator, domain_loss, entropy, gradient_reverse, grl_coefficient, perceptron
from tllib_ext.split import LabelSplit

__all__ = ["Etn", "EtnHparams", "leaky_logit", "leaky_bce"]


def leaky_logit(logits: Tensor) -> Tensor:
    r"""The logit of :math:`A = \sum_k e^{o_k} / (K + \sum_j e^{o_j})`, the leaky softmax's total, in float32.

    Examples::

        >>> leaky_logit(torch.zeros(1, 4)).sigmoid().item()
        0.5
    """
    return torch.logsumexp(logits.float(), -1) - math.log(logits.shape[-1])


def leaky_bce(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Per-sample :math:`-\log a_y - \sum_{k \ne y} \log(1 - a_k)` of the leaky softmax a.

    Shape:
        - logits: :math:`(N, K)`; labels: :math:`(N, )`
        - Outputs: :math:`(N, )`

    Examples::

        >>> round(leaky_bce(torch.zeros(1, 2), torch.tensor([0])).item(), 4)  # a = 1/4: -log 1/4 - log 3/4
        1.674
    """
    o = logits.float()
    k = o.shape[-1]
    leak = o.new_full((*o.shape[:-1], 1), math.log(k))
    log_all = torch.cat([o, leak], -1).logsumexp(-1, keepdim=True)
    itself = torch.eye(k, dtype=torch.bool, device=o.device)
    others = o.unsqueeze(-2).masked_fill(itself, -math.inf)  # row k: every logit but the k-th
    log_not = torch.logaddexp(others.logsumexp(-1), leak) - log_all
    chosen = F.one_hot(labels, k).bool()
    return -torch.where(chosen, o - log_all, log_not).sum(-1)


@dataclass
class EtnHparams(Hparams):
    """Defaults are the authors' code on the DANCE family's learning rate."""

    trade_off: float = hparam(1.0, "code, OfficeHome", "weight of the adversarial loss")
    entropy_weight: float = hparam(0.2, "code, OfficeHome", "weight of the target's entropy")
    aux_domain_weight: float = hparam(10.0, "code, OfficeHome", "weight of the auxiliary head's domain loss")
    aux_class_weight: float = hparam(1.0, "code, OfficeHome", "weight of the auxiliary head's class loss")
    grl_gamma: float = hparam(
        40.0, "code: 10, max 10000, two counts in each of 20000 iterations", "speed of the reversal's growth"
    )
    bottleneck: int = hparam(256, "code", "width of z")
    hidden: int = hparam(1024, "code", "width of the hidden layers of both adversaries")
    lr_mult: float = hparam(1.0, "DANCE: lr 0.01; code: 0.1 (20000 iterations)", "of every learning rate")
    unknown_rule: str = hparam("entropy", "DANCE, GLC", "entropy, confidence or target-model")
    unknown_threshold: Optional[float] = hparam(None, "customary", "share of log K, least confidence or posterior; 0.5")


class Etn(Method):
    """Example transfer network."""

    Hparams = EtnHparams
    hparams: EtnHparams
    presets = {"default": {}, "code": dict(lr_mult=0.1)}

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[EtnHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.bottleneck = nn.Linear(self.features_dim, hp.bottleneck)  # no batch norm, no ReLU
        self.head = nn.Linear(hp.bottleneck, k)
        self.discriminator = DomainDiscriminator(hp.bottleneck, hp.hidden, "dropout")
        self.auxiliary = nn.Sequential(*perceptron(hp.bottleneck, hp.hidden, k, "dropout"))
        self.rule = EntropyRule(k, hp.unknown_rule, hp.unknown_threshold)
        self.threshold = self.rule.threshold

    def players(self) -> Dict[str, List[ParamGroup]]:
        mult = self.hparams.lr_mult
        adversaries = [*self.discriminator.parameters(), *self.auxiliary.parameters()]
        return {"G": self.backbone_groups(mult),
                "C": [{"params": [*self.bottleneck.parameters(), *self.head.parameters()], "lr_mult": mult}],
                "D": [{"params": adversaries, "lr_mult": mult}]}  # fmt: skip

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp = self.hparams
        z_s = self.bottleneck(self.backbone(source.x))
        z_t = self.bottleneck(self.backbone(target.x))
        logits_s, logits_t = self.head(z_s), self.head(z_t)
        ce = F.cross_entropy(logits_s.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits_s])

        z, sizes = torch.cat([z_s, z_t]), (len(z_s), len(z_t))  # no batch norm in the adversaries: one pass is as good
        aux_s, aux_t = self.auxiliary(z.detach()).split(sizes)
        w = torch.sigmoid(-leaky_logit(aux_s)).detach()  # 1 - A
        w = w / (gather_rows(w).mean() + 1e-10)
        coefficient = grl_coefficient(step / self.steps, hp.grl_gamma)
        d_s, d_t = self.discriminator(gradient_reverse(z, coefficient)).split(sizes)
        adversarial = pooled_mean(w * domain_loss(d_s, True)) + pooled_mean(domain_loss(d_t, False))
        aux_domain = pooled_mean(domain_loss(leaky_logit(aux_s), True)) + pooled_mean(domain_loss(leaky_logit(aux_t), False))
        terms = {
            "source": pooled_mean(w * ce),
            "adversarial": hp.trade_off * adversarial,
            "entropy": hp.entropy_weight * pooled_mean(entropy(logits_t)),
            "aux_domain": hp.aux_domain_weight * aux_domain,
            "aux_class": hp.aux_class_weight * pooled_mean(leaky_bce(aux_s, source.labels)),
        }
        play.descend(terms, "G", "C", "D")
        return {"loss": terms["source"].detach(), "adversarial": adversarial.detach(), "aux_domain": aux_domain.detach()}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule(self.head(self.bottleneck(f)), x, f)
