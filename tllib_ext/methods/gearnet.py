r"""`GearNet: Stepwise Dual Learning for Weakly Supervised Domain Adaptation (AAAI 2022) <https://arxiv.org/abs/2201.06001>`_:
noisy source labels, closed label sets.

A run has stages, each with new layers. An even stage learns :doc:`TCL </methods/tcl>` from the noisy source to the target; every
target image then has the network's class as its label. An odd stage learns from the target, so labelled, to the source. From the
second stage on the network stays close to the one of the stage before, whose output on the unlabelled side is q:

.. math::
    L = L_{TCL}(\text{labelled}, \text{unlabelled}) + \beta\, \overline{KL(q \| p) + KL(p \| q)}

Ours differs from the authors' code in this: q is the output at the end of the stage before, once for every image and without
augmentation (the code takes the network that was best on *target labels*, which so enter the training); the run is as long as
any other, so that there are three stages in place of ten; the last stage is even and its last step is the result (the code
reports the best epoch of the best stage on target labels). On frozen features a stage also begins with a new bottleneck; a
trained backbone goes on through the stages (the code never trains it: preset ``code``). With ``trade_off=0.5
entropy_weight=0 warmup=1`` DANN takes the place of TCL. The paper has closed label sets; here target images of high entropy are
unknown, and have no label in odd stages.
"""

import math
from dataclasses import dataclass
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Players, hparam, inverse_decay
from tllib_ext.methods.context import Context
from tllib_ext.methods.tcl import Tcl, TclHparams, curriculum
from tllib_ext.modules.adversarial import domain_loss, entropy, gradient_reverse, grl_coefficient
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.modules.memory import SampleRows
from tllib_ext.split import LabelSplit

__all__ = ["GearNet", "GearNetHparams"]


@dataclass
class GearNetHparams(TclHparams):
    """TCL's, with the constants of GearNet's code."""

    mu: float = hparam(1.0, "code", "weight of transferability beside easiness")
    tau_y: float = hparam(0.5, "code", "a sample of this probability, and of tau_d, is just easy enough")
    warmup: float = hparam(0.6, "code: 30 of 50 epochs", "share of a stage with all samples; 1 = never select")
    grl_gamma: float = hparam(10.0, "code", "speed of the reversal's growth over a stage")
    lr_mult: float = hparam(1.0, "code: lr 0.01", "of every learning rate")
    stages: int = hparam(3, "ours; code: 10, of which the ninth is the last even one", "number of stages, odd")
    beta: float = hparam(0.1, "code", "weight of the divergence from the stage before")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages < 1 or self.stages % 2 == 0:
            raise UserError(f"hyper-parameter stages={self.stages}: expected an odd number: the last stage learns the target")


class GearNet(Tcl):
    """TCL from source to target and back."""

    Hparams = GearNetHparams
    hparams: GearNetHparams
    presets = {"default": {}, "code": dict(freeze=True, init="normal", stages=9)}
    training_only = ("old_source.", "old_target.")
    context: Context

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[GearNetHparams] = None):
        super().__init__(backbone, split, hparams)
        k = split.num_source
        self.old_source, self.old_target = SampleRows(k), SampleRows(k)  # q of every image

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        context.need("source_features", "target_features")
        self.old_source.resize(context.num_source)
        self.old_target.resize(context.num_target)

    def _stage(self, step: int, steps: int) -> Tuple[int, float]:
        """Number of the stage, and the share of it that is done."""
        stages = min(self.hparams.stages, steps - (steps + 1) % 2)  # a short run has fewer
        place = step * stages / steps
        return int(place), place % 1

    def lr_factor(self, step: int, steps: int) -> float:
        return inverse_decay(self._stage(step, steps)[1])

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp, size = self.hparams, len(source.x)
        stage, done = self._stage(step, self.steps)
        if stage and stage != self._stage(step - 1, self.steps)[0]:
            self._begin(stage)
        with torch.set_grad_enabled(not hp.freeze):
            f = self.backbone(torch.cat([source.x, target.x]))
        z = self.bottleneck(f)
        d = self.discriminator(gradient_reverse(z, grl_coefficient(done, hp.grl_gamma)))
        logits, k = self.head(z).float(), self.split.num_source
        own = F.cross_entropy(logits[:size], source.labels, reduction="none")
        self.observe(source, own, [logits[:size]])
        if stage % 2 == 0:
            learnt, far, q = slice(0, size), slice(size, None), self.old_target.rows[target.index]
            ce, known = own, torch.ones_like(own, dtype=torch.bool)
        else:
            learnt, far, q = slice(size, None), slice(0, size), self.old_source.rows[source.index]
            p_old = self.old_target.rows[target.index]
            ce = F.cross_entropy(logits[learnt], p_old.argmax(1), reduction="none")
            known = torch.special.entr(p_old).sum(1) <= 0.5 * math.log(k)
        chosen = curriculum(ce, d[learnt], hp.mu, hp.tau_y, hp.tau_d) if done >= hp.warmup else torch.ones_like(ce)
        both = torch.cat([chosen * domain_loss(d[learnt], True), domain_loss(d[far], False)])
        everyone = torch.ones_like(q[:, 0], dtype=torch.bool)
        terms = {
            "source": pooled_mean(chosen * ce, known),
            "adversarial": hp.trade_off * pooled_mean(both, torch.cat([known, everyone])),
            "entropy": hp.entropy_weight * pooled_mean(entropy(logits[far])),
        }
        if stage:
            log_p, log_q = F.log_softmax(logits[far], dim=1), q.clamp(min=1e-8).log()
            terms["old"] = hp.beta * pooled_mean(((log_p.exp() - q) * (log_p - log_q)).sum(1))  # both divergences
        play.descend(terms, *(["C", "D"] if hp.freeze else ["G", "C", "D"]))
        return {"loss": terms["source"].detach(), "kept": (chosen * known).mean(), "adversarial": terms["adversarial"].detach()}

    @torch.no_grad()
    def _begin(self, stage: int) -> None:
        """Keep what the network says of all images, then start with new layers, the same ones in every process."""
        context = self.context
        for old, domain in ((self.old_source, "source"), (self.old_target, "target")):
            old.rows.copy_(self.head(self.bottleneck(context.whole(domain).to(old.rows))).softmax(1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed * 1000 + stage)
            for part in (self.backbone if isinstance(self.backbone, FeatureBottleneck) else None, self.bottleneck, self.head,
                         self.discriminator):  # fmt: skip
                for layer in part.modules() if part is not None else ():
                    if callable(reset := getattr(layer, "reset_parameters", None)):
                        reset()
            if self.hparams.init == "normal":
                self._small_weights()
        known = torch.special.entr(self.old_target.rows).sum(1) <= 0.5 * math.log(self.split.num_source)
        context.say(f"stage {stage + 1}: {known.float().mean():.1%} of the target have a label")
