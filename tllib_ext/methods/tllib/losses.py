r"""Seven of tllib's methods that are one loss between the domains: DANN, CDAN, MDD, DAN, JAN, AFN and MCC.

The constants are those of tllib's example scripts; see :mod:`tllib_ext.methods.tllib.builtin` for what they share.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Tuple

from torch import Tensor

from tllib_ext.compat import tllib
from tllib_ext.methods.base import hparam
from tllib_ext.methods.tllib.builtin import Terms, TllibHparams, TllibMethod

__all__ = ["TllibDann", "TllibCdan", "TllibMdd", "TllibDan", "TllibJan", "TllibAfn", "TllibMcc", "AdversarialHparams"]


@dataclass
class AdversarialHparams(TllibHparams):
    """Of the methods with a gradient reversal."""

    grl_gamma: float = hparam(20.0, "tllib's script: 20000 iterations in units of 1000", "speed of the reversal's growth")


class TllibDann(TllibMethod):
    """`Domain-Adversarial Training of Neural Networks (JMLR 2016) <https://arxiv.org/abs/1505.07818>`_."""

    part, Hparams = "alignment.dann", AdversarialHparams
    training_only: Tuple[str, ...] = ("loss.",)
    presets = {"default": {}, "code": dict(weight_decay=1e-3, lr=0.01, lr_gamma=20.0)}
    hparams: AdversarialHparams

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, self.split.num_source)
        self.loss = part.DomainAdversarialLoss(self.discriminator(self.net.features_dim), grl=self.reversal())

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        return {"adversarial": self.hparams.trade_off * self.loss(f_s, f_t)}


@dataclass
class CdanHparams(AdversarialHparams):
    """Of CDAN."""

    entropy: bool = hparam(False, "tllib's script", "weigh samples by their certainty (CDAN+E)")


class TllibCdan(TllibMethod):
    """`Conditional Adversarial Domain Adaptation (NeurIPS 2018) <https://arxiv.org/abs/1705.10667>`_."""

    part, Hparams, training_only = "alignment.cdan", CdanHparams, ("loss.",)
    presets = {"default": {}, "code": dict(weight_decay=1e-3, lr=0.01, lr_gamma=20.0)}
    hparams: CdanHparams

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, self.split.num_source)
        discriminator = self.discriminator(self.net.features_dim * self.split.num_source)
        self.loss = part.ConditionalDomainAdversarialLoss(discriminator, entropy_conditioning=self.hparams.entropy)
        self.loss.grl = self.reversal()

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        return {"adversarial": self.hparams.trade_off * self.loss(y_s, f_s, y_t, f_t)}


@dataclass
class MddHparams(AdversarialHparams):
    """Of MDD."""

    bottleneck: int = hparam(1024, "tllib's script", "width of the bottleneck and of both heads")
    margin: float = hparam(4.0, "tllib's script", "gamma of the margin disparity")


class TllibMdd(TllibMethod):
    """`Bridging Theory and Algorithm for Domain Adaptation (ICML 2019) <https://arxiv.org/abs/1904.05801>`_."""

    part, Hparams = "alignment.mdd", MddHparams
    presets = {"default": {}, "code": dict(lr=0.004, lr_gamma=4.0)}
    hparams: MddHparams

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, self.split.num_source, width=self.hparams.bottleneck, grl=self.reversal(hi=0.1))
        self.loss = part.ClassificationMarginDisparityDiscrepancy(self.hparams.margin)

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        # This classifier returns the logits of its adversarial head where others return features.
        return {"disparity": -self.hparams.trade_off * self.loss(y_s, f_s, y_t, f_t)}


class TllibDan(TllibMethod):
    """`Learning Transferable Features with Deep Adaptation Networks (ICML 2015) <https://arxiv.org/abs/1502.02791>`_."""

    part, joint = "alignment.dan", False
    presets = {"default": {}, "code": dict(lr=0.003, lr_gamma=3.0)}

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, self.split.num_source)
        kernel = tllib("modules.kernels").GaussianKernel
        self.loss = part.MultipleKernelMaximumMeanDiscrepancy([kernel(alpha=2.0**k) for k in range(-3, 2)], linear=True)

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        return {"mmd": self.hparams.trade_off * self.loss(f_s, f_t)}


class TllibJan(TllibMethod):
    """`Deep Transfer Learning with Joint Adaptation Networks (ICML 2017) <https://arxiv.org/abs/1605.06636>`_."""

    part = "alignment.jan"
    presets = {"default": {}, "code": dict(lr=0.003, lr_gamma=3.0)}

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, self.split.num_source)
        kernel = tllib("modules.kernels").GaussianKernel
        layers = [kernel(alpha=2.0**k) for k in range(-3, 2)], [kernel(sigma=0.92, track_running_stats=False)]
        self.loss = part.JointMultipleKernelMaximumMeanDiscrepancy(layers, linear=False)

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        return {"jmmd": self.hparams.trade_off * self.loss((f_s, y_s.softmax(1)), (f_t, y_t.softmax(1)))}


@dataclass
class AfnHparams(TllibHparams):
    """Of AFN."""

    trade_off: float = hparam(0.05, "tllib's script", "weight of the norm loss")
    bottleneck: int = hparam(1000, "tllib's script", "width of the classifier's bottleneck")
    delta: float = hparam(1.0, "tllib's script", "by how much a step should enlarge the features' norm")
    trade_off_entropy: float = hparam(0.1, "tllib's script for Office-31", "weight of the target's entropy")


class TllibAfn(TllibMethod):
    """`Larger Norm More Transferable (ICCV 2019) <https://arxiv.org/abs/1811.07456>`_."""

    part, joint, Hparams = "normalization.afn", False, AfnHparams
    presets = {"default": {}, "code": dict(lr=0.001, lr_gamma=0.0, backbone_lr_mult=1.0, backbone_momentum=0.0, nesterov=False)}
    hparams: AfnHparams

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, self.split.num_source)
        self.loss = part.AdaptiveFeatureNorm(self.hparams.delta)
        self.entropy = tllib("modules.entropy").entropy

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        hp = self.hparams
        return {"norm": hp.trade_off * (self.loss(f_s) + self.loss(f_t)),
                "entropy": hp.trade_off_entropy * self.entropy(y_t.softmax(1), reduction="mean")}  # fmt: skip


@dataclass
class MccHparams(TllibHparams):
    """Of MCC."""

    temperature: float = hparam(2.5, "tllib's script", "of the class confusion")


class TllibMcc(TllibMethod):
    """`Minimum Class Confusion for Versatile Domain Adaptation (ECCV 2020) <https://arxiv.org/abs/1912.03699>`_."""

    part, Hparams = "self_training.mcc", MccHparams
    presets = {"default": {}, "code": dict(bottleneck=1024, lr=0.005, weight_decay=1e-3, lr_gamma=10.0)}
    hparams: MccHparams

    def build(self, part: ModuleType) -> None:
        self.net = self.classifier(part, self.split.num_source)
        self.loss = part.MinimumClassConfusionLoss(self.hparams.temperature)

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        return {"confusion": self.hparams.trade_off * self.loss(y_t)}
