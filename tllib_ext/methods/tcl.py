r"""`Transferable Curriculum for Weakly-Supervised Domain Adaptation (AAAI 2019)
<https://ojs.aaai.org/index.php/AAAI/article/view/4424>`_: noisy source labels, closed label sets.

DANN in which a source sample takes part only while it is easy *and* looks like the target::

    w_i   = 1[ CE_i - mu log(1 - d_i) < age ],   age = -log tau_y - mu log(1 - tau_d)       d: "source" by D, no gradient
    loss  = 1/B_s sum w_i CE_i  +  1/(B_s + B_t) [sum -w_i log d_i + sum -log(1 - d_j)]  +  0.1 mean H(p_t)
    first 15 % of the run: w = 1

The threshold is on the loss itself, not on a share of the batch: a classifier that has not learnt by the end of the
warm-up (CE > age = 1.273) drops everything, and the discriminator then sees the target alone; the losses stay finite.
The authors' code freezes the backbone (preset ``code``); by default it is fine-tuned like that of every other method.
Momentum is Nesterov's and source batches are class-balanced here, as for every method. Unknown: the entropy rule.
"""

import math
from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.adversarial import DomainDiscriminator, domain_loss, entropy, gradient_reverse, grl_coefficient
from tllib_ext.split import LabelSplit

__all__ = ["Tcl", "TclHparams", "curriculum"]


def curriculum(ce: Tensor, d: Tensor, mu: float, tau_y: float, tau_d: float) -> Tensor:
    r"""Which source samples take part: :math:`1[CE_i - \mu \log(1 - d_i) < -\log \tau_y - \mu \log(1 - \tau_d)]`.

    Shape:
        - ce: :math:`(N, )` losses; d: :math:`(N, )` *logits* of "source"
        - Outputs: :math:`(N, )` of 0 and 1, without gradient

    Examples::

        >>> curriculum(torch.tensor([1.2, 1.2]), torch.tensor([-1., 5.]), mu=0.1, tau_y=0.3, tau_d=0.5).tolist()
        [1.0, 0.0]
    """
    age = -math.log(tau_y) - mu * math.log(1 - tau_d)
    return (ce.detach() + mu * domain_loss(d.detach(), False) < age).float()


@dataclass
class TclHparams(Hparams):
    """Defaults are the authors' code on the DANCE family's learning rate and with a trained backbone."""

    mu: float = hparam(0.1, "code", "weight of transferability beside easiness")
    tau_y: float = hparam(0.3, "code", "a sample of this probability, and of tau_d, is just easy enough")
    tau_d: float = hparam(0.5, "code", "see tau_y")
    trade_off: float = hparam(1.0, "code", "weight of the adversarial loss")
    entropy_weight: float = hparam(0.1, "code", "weight of the target's entropy")
    warmup: float = hparam(0.15, "code: 3000 of 20000 iterations", "share of the run with all samples")
    grl_gamma: float = hparam(20.0, "code: 10, max 10000, of 20000 iterations", "speed of the reversal's growth over the run")
    freeze: bool = hparam(False, "code: true; for comparability: false", "keep the backbone as it is, in evaluation mode")
    init: str = hparam(
        "default", "code: normal; torch's learns within shorter runs", "default, or normal: the code's small weights"
    )
    bottleneck: int = hparam(256, "code", "width of z")
    hidden: int = hparam(1024, "code", "width of the discriminator's hidden layers")
    lr_mult: float = hparam(1.0, "DANCE: lr 0.01; code: 0.3 (20000 iterations)", "of every learning rate")
    unknown_rule: str = hparam("entropy", "DANCE, GLC", "entropy, confidence or target-model")
    unknown_threshold: Optional[float] = hparam(None, "customary", "share of log K, least confidence or posterior; 0.5")

    def __post_init__(self) -> None:
        if self.init not in ("default", "normal"):
            raise UserError(f"hyper-parameter init={self.init!r}: expected default or normal")


class Tcl(Method):
    """Transferable curriculum."""

    Hparams = TclHparams
    hparams: TclHparams
    presets = {"default": {}, "code": dict(freeze=True, init="normal", lr_mult=0.3)}

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[TclHparams] = None):
        super().__init__(backbone, split, hparams)
        hp = self.hparams
        self.bottleneck = nn.Linear(self.features_dim, hp.bottleneck)  # no batch norm, no ReLU
        self.head = nn.Linear(hp.bottleneck, split.num_source)
        self.discriminator = DomainDiscriminator(hp.bottleneck, hp.hidden, "dropout")
        if hp.init == "normal":
            self._small_weights()
        self.rule = EntropyRule(split.num_source, hp.unknown_rule, hp.unknown_threshold)
        self.threshold = self.rule.threshold

    def _small_weights(self) -> None:
        layers = [layer for layer in self.discriminator if isinstance(layer, nn.Linear)]
        for layer, std, bias in ((self.bottleneck, 0.005, 0.1), (self.head, 0.01, 0.0), (layers[0], 0.01, 0.0),
                                 (layers[1], 0.01, 0.0), (layers[2], 0.3, 0.0)):  # fmt: skip
            nn.init.normal_(layer.weight, std=std)
            nn.init.constant_(layer.bias, bias)

    def players(self) -> Dict[str, List[ParamGroup]]:
        mult = self.hparams.lr_mult
        heads = [*self.bottleneck.parameters(), *self.head.parameters()]
        players: Dict[str, List[ParamGroup]] = {
            "C": [{"params": heads, "lr_mult": mult}],
            "D": [{"params": self.discriminator.parameters(), "lr_mult": mult}],
        }
        if not self.hparams.freeze:
            players["G"] = self.backbone_groups(mult)
        return players

    def train(self, mode: bool = True) -> "Tcl":
        super().train(mode)
        if self.hparams.freeze:
            self.backbone.eval()
        return self

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp, size = self.hparams, len(source.x)
        with torch.set_grad_enabled(not hp.freeze):
            f = self.backbone(torch.cat([source.x, target.x]))  # both domains in one batch
        z = self.bottleneck(f)
        logits = self.head(z)
        ce = F.cross_entropy(logits[:size].float(), source.labels, reduction="none")
        self.observe(source, ce, [logits[:size]])
        d = self.discriminator(gradient_reverse(z, grl_coefficient(step / self.steps, hp.grl_gamma)))
        if step < hp.warmup * self.steps:
            w = torch.ones_like(ce)
        else:
            w = curriculum(ce, d[:size], hp.mu, hp.tau_y, hp.tau_d)
        both = torch.cat([w * domain_loss(d[:size], True), domain_loss(d[size:], False)])
        terms = {
            "source": pooled_mean(w * ce),  # reference: divided by the batch, not by the number selected
            "adversarial": hp.trade_off * pooled_mean(both),
            "entropy": hp.entropy_weight * pooled_mean(entropy(logits[size:])),
        }
        play.descend(terms, *(["C", "D"] if hp.freeze else ["G", "C", "D"]))
        return {"loss": terms["source"].detach(), "kept": w.mean(), "adversarial": terms["adversarial"].detach()}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule(self.head(self.bottleneck(f)), x, f)
