r"""`Domain-Adversarial Training of Neural Networks (JMLR 2016) <https://arxiv.org/abs/1505.07818>`_, as tllib runs it.

A discriminator D learns to separate source from target features; a gradient reversal trains the features against it::

    min over G, C, D   mean CE(C(z_s), y) + t/2 [mean -log D(R(z_s)) + mean -log(1 - D(R(z_t)))]        z = bottleneck(G(x))
    R: identity forward, -lambda backward; lambda = 2 / (1 + exp(-gamma p)) - 1, p = share of the run

Both domains go through the network in one batch, so batch norm mixes them (tllib and the paper; the DANCE family does
not). DANN has no notion of unknown: the customary entropy rule decides. tllib's open-set script instead trains K+1
outputs and puts a constant threshold in the place of the last; with K outputs that is ``--unknown-rule confidence``.
tllib counts iterations in lambda (1000 is its unit, 20000 its run); here the share of the run counts.
"""

from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam, inverse_decay
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.adversarial import DomainDiscriminator, domain_loss, gradient_reverse, grl_coefficient
from tllib_ext.split import LabelSplit

__all__ = ["Dann", "DannHparams"]


@dataclass
class DannHparams(Hparams):
    """Defaults are tllib's closed-set script, on the DANCE family's optimiser; preset ``code`` has tllib's."""

    trade_off: float = hparam(1.0, "tllib", "t, weight of the adversarial loss")
    grl_gamma: float = hparam(20.0, "tllib: 20000 iterations in units of 1000; paper: 10", "speed of the reversal's growth")
    bottleneck: int = hparam(256, "tllib", "width of z")
    hidden: int = hparam(1024, "tllib", "width of the discriminator's hidden layers")
    lr_mult: float = hparam(1.0, "tllib closed set and DANCE: lr 0.01; tllib open set: 0.2", "of every learning rate")
    lr_gamma: float = hparam(10.0, "DANCE; tllib: 0.001 x 20000", "learning rate x (1 + this x share of the run)^-0.75")
    weight_decay: Optional[float] = hparam(None, "the run's; tllib: 0.001", "none = the run's")
    unknown_rule: str = hparam("entropy", "DANCE, GLC", "entropy, confidence or target-model")
    unknown_threshold: Optional[float] = hparam(None, "customary", "share of log K, least confidence or posterior; 0.5")


class Dann(Method):
    """Domain-adversarial training."""

    Hparams = DannHparams
    presets = {"default": {}, "code": {"lr_gamma": 20.0, "weight_decay": 1e-3}}
    hparams: DannHparams

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[DannHparams] = None):
        super().__init__(backbone, split, hparams)
        hp = self.hparams
        self.bottleneck = nn.Sequential(nn.Linear(self.features_dim, hp.bottleneck), nn.BatchNorm1d(hp.bottleneck), nn.ReLU())
        self.head = nn.Linear(hp.bottleneck, split.num_source)
        self.discriminator = DomainDiscriminator(hp.bottleneck, hp.hidden, "batch_norm")
        self.rule = EntropyRule(split.num_source, hp.unknown_rule, hp.unknown_threshold)
        self.threshold = self.rule.threshold

    def players(self) -> Dict[str, List[ParamGroup]]:
        mult, decay = self.hparams.lr_mult, self.hparams.weight_decay
        heads = [*self.bottleneck.parameters(), *self.head.parameters()]
        players: Dict[str, List[ParamGroup]] = {
            "G": self.backbone_groups(mult),
            "C": [{"params": heads, "lr_mult": mult}],
            "D": [{"params": self.discriminator.parameters(), "lr_mult": mult}],
        }
        for (group,) in players.values():
            if decay is not None:
                group["weight_decay"] = decay
        return players

    def lr_factor(self, step: int, steps: int) -> float:
        return inverse_decay(step / steps, self.hparams.lr_gamma)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        z = self.bottleneck(self.backbone(torch.cat([source.x, target.x])))
        size = len(source.x)
        logits_s = self.head(z[:size])
        ce = F.cross_entropy(logits_s.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits_s])
        d = self.discriminator(gradient_reverse(z, grl_coefficient(step / self.steps, self.hparams.grl_gamma)))
        adversarial = 0.5 * (pooled_mean(domain_loss(d[:size], True)) + pooled_mean(domain_loss(d[size:], False)))
        terms = {"source": pooled_mean(ce), "adversarial": self.hparams.trade_off * adversarial}
        play.descend(terms, "G", "C", "D")
        return {"loss": terms["source"].detach(), "adversarial": adversarial.detach()}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule(self.head(self.bottleneck(f)), x, f)
