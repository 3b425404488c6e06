r"""Four of tllib's methods that are more than one loss: MCD, OSBP, PADA and IWAN.

The constants are those of tllib's example scripts; see :mod:`tllib_ext.methods.tllib.builtin` for what they share.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.alignment.divergence import at_least_float32
from tllib_ext.compat import tllib
from tllib_ext.distributed import gather_rows, pooled_mean
from tllib_ext.methods.base import Batch, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.methods.rules import predict_unknown_class
from tllib_ext.methods.tllib.builtin import Outputs, Terms, TllibHparams, TllibMethod
from tllib_ext.methods.tllib.losses import AdversarialHparams, TllibDann
from tllib_ext.modules.heads import mean_probabilities

__all__ = ["TllibMcd", "TllibOsbp", "TllibPada", "TllibIwan"]


@dataclass
class McdHparams(TllibHparams):
    """Of MCD."""

    bottleneck: int = hparam(1024, "tllib's script", "width of the heads' hidden layers")
    trade_off_entropy: float = hparam(0.01, "tllib's script", "weight of the class balance on the target")
    num_k: int = hparam(4, "tllib's script", "repeats of Step C")


class TllibMcd(TllibMethod):
    """`Maximum Classifier Discrepancy for Unsupervised Domain Adaptation (CVPR 2018) <https://arxiv.org/abs/1712.02560>`_.

    The ancestor of the three steps of ``divergence``: the heads move apart on the target, G brings them together.
    """

    part, Hparams = "alignment.mcd", McdHparams
    hparams: McdHparams
    presets = {
        "default": {},
        "code": dict(trade_off=10.0, lr=0.001, lr_gamma=0.0, backbone_lr_mult=1.0, backbone_momentum=0.0, nesterov=False),
    }

    def build(self, part: ModuleType) -> None:
        sizes = self.features_dim, self.split.num_source, self.hparams.bottleneck
        self.heads = nn.ModuleList(part.ImageClassifierHead(*sizes, pool_layer=nn.Identity()) for _ in range(2))
        self.discrepancy, self.balance = part.classifier_discrepancy, part.entropy

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        x, n, hp = torch.cat([source.x, target.x]), len(source.x), self.hparams
        # Step A: all players learn the source.
        logits = self._logits(self.backbone(x))
        self.observe(source, self._cross_entropy(logits, source) / 2, [y[:n] for y in logits])
        terms = self._supervised(logits, source)
        play.descend(terms, "G", "C")
        # Step B: the heads move apart on the target; no graph through G, which does not step.
        with torch.no_grad():
            f = self.backbone(x)
        logits = self._logits(f)
        apart = {"apart": -hp.trade_off * self._discrepancy(logits, n)}
        play.descend({**self._supervised(logits, source), **apart}, "C")
        # Step C: G brings them together.
        discrepancy = apart["apart"]
        for _ in range(hp.num_k):
            discrepancy = hp.trade_off * self._discrepancy(self._logits(self.backbone(x)), n)
            play.descend({"together": discrepancy}, "G")
        return {"loss": terms["source"].detach() / 2, "discrepancy": discrepancy.detach()}

    def _logits(self, f: Tensor) -> List[Tensor]:
        return [at_least_float32(head(f)) for head in self.heads]

    def _discrepancy(self, logits: List[Tensor], n: int) -> Tensor:
        return self.discrepancy(*(y[n:].softmax(1) for y in logits))

    def _cross_entropy(self, logits: List[Tensor], source: Batch) -> Tensor:
        first, second = (F.cross_entropy(y[: len(source.x)], source.labels, reduction="none") for y in logits)
        return first + second

    def _supervised(self, logits: List[Tensor], source: Batch) -> Terms:
        first, second = (self.balance(y[len(source.x) :].softmax(1)) for y in logits)
        ce = self._cross_entropy(logits, source)
        return {"source": pooled_mean(ce), "balance": self.hparams.trade_off_entropy * (first + second)}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule.from_probs(mean_probabilities(head(f) for head in self.heads), x, f)


@dataclass
class OsbpHparams(TllibHparams):
    """Of OSBP."""

    t: float = hparam(0.5, "tllib's script", "the probability of unknown that the classifier aims at on the target")


class TllibOsbp(TllibMethod):
    """`Open Set Domain Adaptation by Backpropagation (ECCV 2018) <https://arxiv.org/abs/1804.10427>`_.

    Its classifier has an output for unknown; the unknown rule is that this one is the largest.
    """

    part, joint, Hparams = "alignment.osbp", False, OsbpHparams
    presets = {"default": {}, "code": dict(lr=0.001, lr_gamma=3.0)}
    hparams: OsbpHparams

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, len(self.split.label_names))
        self.loss = part.UnknownClassBinaryCrossEntropy(t=self.hparams.t)
        self.threshold = 0.0

    def outputs(self, x_s: Tensor, x_t: Tensor) -> Tuple[Outputs, Outputs]:
        return self.net(self.backbone(x_s)), self.net(self.backbone(x_t), grad_reverse=True)

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        return {"unknown": self.hparams.trade_off * self.loss(y_t)}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        return predict_unknown_class(self.net(self.backbone(x)), self.split.unknown)


@dataclass
class PadaHparams(AdversarialHparams):
    """Of PADA."""

    update_share: float = hparam(0.025, "tllib's script: every 500 of 20000 steps", "share of the run between class weights")
    temperature: float = hparam(0.1, "tllib's script", "of the probabilities that the class weights are means of")


class TllibPada(TllibDann):
    """`Partial Adversarial Domain Adaptation (ECCV 2018) <https://arxiv.org/abs/1808.04205>`_: DANN, with classes
    weighted by how often the target is predicted as them."""

    Hparams = PadaHparams
    training_only = ("loss.", "class_weight")
    presets = {"default": {}, "code": dict(lr=0.002, weight_decay=1e-3, lr_gamma=20.0)}
    hparams: PadaHparams
    class_weight: Tensor

    def build(self, part: ModuleType) -> None:
        super().build(part)
        self.weigh = tllib("reweight.pada").ClassWeightModule(self.hparams.temperature)
        self.register_buffer("class_weight", torch.ones(self.split.num_source))
        self.every = 0

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self.every = max(1, round(self.hparams.update_share * context.steps))

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        if step and step % self.every == 0:
            self.class_weight.copy_(self.weigh(self.over_whole("target", self.net).float()))
        return super().update(source, target, step, play)

    def source_loss(self, ce: Tensor, labels: Tensor) -> Tensor:
        w = self.class_weight[labels]
        return pooled_mean(w * ce) / gather_rows(w).mean()

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        w_s = self.class_weight[labels]
        w_t = w_s.mean().expand_as(w_s)
        return {"adversarial": self.hparams.trade_off * self.loss(f_s, f_t, w_s, w_t)}


@dataclass
class IwanHparams(AdversarialHparams):
    """Of IWAN."""

    trade_off: float = hparam(
        3.0, "tllib's script", "weight of the weighted adversarial loss, and 1.5 times that of the first one"
    )
    trade_off_entropy: float = hparam(0.1, "tllib's script: gamma", "weight of the target's entropy")
    grl_gamma: float = hparam(10.0, "tllib's script: 10000 iterations in units of 1000", "speed of the reversal's growth")


class TllibIwan(TllibMethod):
    """`Importance Weighted Adversarial Nets for Partial Domain Adaptation (CVPR 2018) <https://arxiv.org/abs/1803.09210>`_:
    a first discriminator, which the features are not trained against, gives the weight of each source sample."""

    part, Hparams, training_only = "alignment.dann", IwanHparams, ("first.", "second.")
    presets = {"default": {}, "code": dict(lr=0.0003, weight_decay=1e-3, lr_gamma=10.0)}
    hparams: IwanHparams

    def build(self, part: ModuleType) -> None:
        reweight = tllib("reweight.iwan")
        self.net = self.classifier(reweight, self.split.num_source)
        first, second = (self.discriminator(self.net.features_dim, batch_norm=False) for _ in range(2))
        self.first = part.DomainAdversarialLoss(first, grl=self.reversal())
        self.second = part.DomainAdversarialLoss(second, grl=self.reversal())
        self.importance = reweight.ImportanceWeightModule(first)
        self.entropy = tllib("modules.entropy").entropy

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        hp = self.hparams
        # reference: the first loss before the weights; both pass the first discriminator's dropout
        first = self.first(f_s.detach(), f_t.detach())
        w_s = self.importance.get_importance_weight(f_s.detach())
        return {"first": 1.5 * hp.trade_off * first,
                "second": hp.trade_off * self.second(f_s, f_t, w_s=w_s),
                "entropy": hp.trade_off_entropy * self.entropy(y_t.softmax(1), reduction="mean")}  # fmt: skip
