r"""`Universal Domain Adaptation through Self Supervision (DANCE, NeurIPS 2020) <https://arxiv.org/abs/2002.07953>`_.

One cosine head, and two losses on the target beside the source's cross entropy. *Neighbourhood clustering* moves an
image towards its nearest neighbour: with :math:`u = f / \|f\|` it minimises the entropy of a softmax over the K class
weights, the remembered features of all target images and the rest of the batch; *entropy separation* pushes the
entropy of the class probabilities away from :math:`\rho = \frac{1}{2} \log K`:

.. math::
    L_{nc} &= \frac{1}{B} \sum_i H\big(\mathrm{softmax}([W u_i,\ V u_i,\ U u_i] / T)\big) \\
    L_{es} &= -\frac{1}{B} \sum_i \max(|H(p_i) - \rho|,\ m) \\
    L &= CE + \eta (L_{nc} + L_{es}), \qquad \text{unknown iff } H(p) > \tfrac{1}{2} \log K

``dance_sel`` is the baseline that `Divergence Optimization for Noisy UniDA (CVPR 2021)
<https://arxiv.org/abs/2104.00246>`_ makes of it: cross entropy over the small-loss part of the batch.

The authors' code rounds :math:`\rho` (1.49, 1.354, 1.09), adds 1e-5 inside every logarithm (which cuts the tail of a
softmax over thousands of entries), calls an image unknown above the rounded :math:`\rho` and trains in half precision.
Preset ``code`` has all but the last, preset ``paper`` none; preset ``default`` has the rounding and the epsilon in
training and the exact border at test. All compute in float32. Inside the dead zone the loss is -m as in the code; the
paper has 0, with the same (zero) gradient. With several processes, batch and neighbours are the global batch's.
"""

import math
from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.alignment.divergence import pooled_small_loss, separation
from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam, inverse_decay
from tllib_ext.methods.context import Context
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.methods.selection import DropRate, check_drop_rate, resolve_drop_rate
from tllib_ext.modules.adversarial import entropy
from tllib_ext.modules.heads import CosineHead
from tllib_ext.modules.memory import FeatureBank
from tllib_ext.split import LabelSplit

__all__ = ["Dance", "DanceHparams", "DanceSel", "DanceSelHparams"]

#: rho of the authors' configurations: log(K) / 2 rounded down for 20 and 9 classes.
CODE_RHO = {20: 1.49, 15: 1.354025100551105, 9: 1.09}


@dataclass
class DanceHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    eta: float = hparam(0.05, "paper §4, code", "weight of both target terms")
    rho: Union[float, str] = hparam("code", "code: 1.49, 1.354, 1.09; paper: log(K)/2", "code, log_k or a number")
    border: str = hparam("log_k", "paper; code: rho", "an image is unknown above half of log K (log_k), or above rho (rho)")
    m: float = hparam(0.5, "paper §4, code", "half width of the dead zone of entropy separation")
    eps: float = hparam(1e-5, "code; paper: 0", "epsilon inside the logarithms of the target terms; 0 is exact")
    temperature: float = hparam(0.05, "paper §4, code", "of the head and of the neighbours")
    decay_to_last: bool = hparam(False, "ours; code: true", "the learning rate decays over S - 1 steps, not over S")

    def __post_init__(self) -> None:
        if isinstance(self.rho, str) and self.rho not in ("code", "log_k"):
            raise UserError(f"hyper-parameter rho={self.rho!r}: expected code, log_k or a number")
        if self.border not in ("log_k", "rho"):
            raise UserError(f"hyper-parameter border={self.border!r}: expected log_k or rho")


class Dance(Method):
    """Neighbourhood clustering and entropy separation."""

    Hparams = DanceHparams
    training_only = ("bank.",)
    presets = {"default": {}, "code": {"border": "rho", "decay_to_last": True}, "paper": {"rho": "log_k", "eps": 0.0}}
    hparams: DanceHparams

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[DanceHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.head = CosineHead(self.features_dim, k, hp.temperature)
        self.bank = FeatureBank(self.features_dim)
        named = {"code": CODE_RHO.get(k, math.log(k) / 2), "log_k": math.log(k) / 2}
        self.rho = named[hp.rho] if isinstance(hp.rho, str) else hp.rho
        self.rule = EntropyRule(k)
        if hp.border == "rho":  # reference: the configured thr, rounded, in training and at test
            self.rule.threshold = self.rho
        self.threshold = self.rule.threshold

    def lr_factor(self, step: int, steps: int) -> float:
        return inverse_decay(step / max(1, steps - self.hparams.decay_to_last))

    def prepare(self, context: Context) -> None:
        self.bank.resize(context.num_target)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        self.head.normalise_rows()
        hp = self.hparams
        logits_s = self.head(self.backbone(source.x))
        ce = F.cross_entropy(logits_s.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits_s])
        loss_s, log = self._source_loss(ce, step)

        f_t = self.backbone(target.x)
        logits_t = self.head(f_t)
        u = F.normalize(f_t.float(), dim=1)
        near = self.bank.neighbours(u, target.index) / hp.temperature
        clustering = pooled_mean(entropy(torch.cat([logits_t.float(), near], dim=1), hp.eps))
        apart = pooled_mean(separation(entropy(logits_t, hp.eps), self.rho, hp.m, inside=-hp.m))
        play.descend({"source": loss_s, "clustering": hp.eta * clustering, "separation": hp.eta * apart}, "G", "C")
        self.bank.write(u, target.index)  # reference: the features of before the step
        return {"loss": loss_s.detach(), "clustering": clustering.detach(), "separation": apart.detach(), **log}

    def _source_loss(self, ce: Tensor, step: int) -> Tuple[Tensor, Dict[str, Tensor]]:
        return pooled_mean(ce), {}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        return self.rule(self.head(self.backbone(x)))


@dataclass
class DanceSelHparams(DanceHparams):
    """DANCE's, and those of the selection."""

    drop_rate: DropRate = hparam(
        None, "noisy UniDA's code: the true noise rate", "share of a batch to drop; none = --rate; auto = estimate it"
    )
    warmup: Optional[int] = hparam(None, "noisy UniDA's code: 101", "steps without selection; default min(101, 4 % of the run)")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_drop_rate(self.drop_rate)


class DanceSel(Dance):
    """DANCE on the small-loss part of every source batch."""

    Hparams = DanceSelHparams
    hparams: DanceSelHparams

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[DanceSelHparams] = None):
        super().__init__(backbone, split, hparams)
        self.drop_rate, self.warmup = 0.0, 0

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        hp = self.hparams
        self.drop_rate = resolve_drop_rate(hp.drop_rate, context, self.split.source_classes)
        # The noisy UniDA paper gives none for this baseline; without one the first selections are random.
        self.warmup = context.warmup(hp.warmup)

    def _source_loss(self, ce: Tensor, step: int) -> Tuple[Tensor, Dict[str, Tensor]]:
        if step < self.warmup:
            return pooled_mean(ce), {}
        kept = pooled_small_loss(ce, self.drop_rate)
        return pooled_mean(ce, kept), {"kept": kept.float().mean()}
