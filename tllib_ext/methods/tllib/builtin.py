r"""tllib's own losses and classifiers behind our contract: ``tllib:dann``, ``tllib:cdan``, ``tllib:mcd``, …

One iteration of each is one iteration of tllib's example script of that name: its weights, its classifier on top of
our backbone and its way of forwarding the domains (in one batch, so that batch norm mixes them, or one after the other).
Preset ``default`` has the learning rate and optimiser that all compared methods share, preset ``code`` those of tllib's
commands for Office-31. In both, schedules in iterations become shares of the run (gradient reversal: ``grl_gamma``,
learning rate: ``lr_gamma``), so that a shorter run goes through the same values. Unknown: by the entropy or confidence
rule; OSBP has a class for it. The last step counts; tllib's scripts keep the best epoch on target labels. With several
processes tllib's losses see each process's own part of the batch.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Dict, List, Optional, Tuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.alignment.divergence import at_least_float32
from tllib_ext.compat import tllib
from tllib_ext.distributed import pooled_mean
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam, inverse_decay
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.heads import FeatureIdentity
from tllib_ext.split import LabelSplit

__all__ = ["TllibMethod", "TllibHparams"]

Terms = Dict[str, Tensor]
#: logits and features of one domain
Outputs = Tuple[Tensor, Tensor]


@dataclass
class TllibHparams(Hparams):
    """Shared by all; defaults and presets of single methods differ, see their classes."""

    trade_off: float = hparam(1.0, "tllib's script", "weight of the transfer loss")
    bottleneck: int = hparam(256, "tllib's script", "width of the classifier's bottleneck")
    unknown_rule: str = hparam("entropy", "DANCE, GLC", "entropy, confidence or target-model")
    unknown_threshold: Optional[float] = hparam(None, "customary", "share of log K, least confidence or posterior; 0.5")
    lr: Optional[float] = hparam(None, "the run's; tllib's scripts have their own", "learning rate; none = the run's")
    weight_decay: Optional[float] = hparam(None, "the run's; tllib's scripts have their own", "none = the run's")
    lr_gamma: float = hparam(10.0, "DANCE; tllib: its lr_gamma x iterations", "learning rate x (1 + this x share of run)^-0.75")
    backbone_lr_mult: Optional[float] = hparam(None, "tllib: 0.1 (MCD, AFN: 1)", "of the backbone; none = as in every method")
    backbone_momentum: Optional[float] = hparam(None, "tllib: 0.9 (MCD, AFN: 0)", "of the backbone; none = the run's")
    nesterov: bool = hparam(True, "tllib (MCD, AFN: false)", "Nesterov's momentum")


class TllibMethod(Method):
    """Cross entropy on the source and one of tllib's losses between the domains."""

    Hparams = TllibHparams
    hparams: TllibHparams
    #: the part of tllib with the loss, and the classifier
    part: str = ""
    #: one forward pass of both domains together
    joint: bool = True
    net: Any

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[TllibHparams] = None):
        super().__init__(backbone, split, hparams)
        self.rule = EntropyRule(split.num_source, self.hparams.unknown_rule, self.hparams.unknown_threshold)
        self.threshold: Optional[float] = self.rule.threshold
        self.reversals: List[Any] = []
        self.build(tllib(self.part))

    def build(self, part: ModuleType) -> None:
        """Make ``self.net`` and the loss from tllib's module ``part``."""
        raise NotImplementedError

    def transfer(self, y_s: Tensor, f_s: Tensor, y_t: Tensor, f_t: Tensor, labels: Tensor) -> Terms:
        """The weighted terms beside the source's, by name, from logits, features and given source labels."""
        raise NotImplementedError

    def classifier(self, part: ModuleType, num_classes: int, **kwargs: Any) -> nn.Module:
        """tllib's classifier of that part, on features."""
        width = self.hparams.bottleneck
        outside = FeatureIdentity(self.features_dim)  # our backbone stays outside of tllib's classifiers
        return part.ImageClassifier(outside, num_classes, bottleneck_dim=width, pool_layer=nn.Identity(), **kwargs)

    def reversal(self, hi: float = 1.0) -> nn.Module:
        """tllib's gradient reversal; :meth:`update` sets its counter, which tllib keeps out of the state."""
        grl = tllib("modules.grl").WarmStartGradientReverseLayer(alpha=1.0, lo=0.0, hi=hi, auto_step=False)
        self.reversals.append(grl)
        return grl

    def discriminator(self, width: int, batch_norm: bool = True) -> nn.Module:
        """tllib's domain discriminator."""
        return tllib("modules.domain_discriminator").DomainDiscriminator(width, 1024, batch_norm=batch_norm)

    def players(self) -> Dict[str, List[ParamGroup]]:
        hp = self.hparams
        (old,), (new,) = super().players().values()
        if hp.backbone_lr_mult is not None:
            old["lr_mult"] = hp.backbone_lr_mult
        if hp.backbone_momentum is not None:
            old["momentum"] = hp.backbone_momentum
        for group in (old, new):
            group["nesterov"] = hp.nesterov
            if hp.lr is not None:
                group["lr"] = hp.lr
            if hp.weight_decay is not None:
                group["weight_decay"] = hp.weight_decay
        return {"G": [old], "C": [new]}

    def lr_factor(self, step: int, steps: int) -> float:
        return inverse_decay(step / steps, self.hparams.lr_gamma)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        for grl in self.reversals:
            grl.iter_num, grl.max_iters = step, self.steps / cast(Any, self.hparams).grl_gamma
        (y_s, f_s), (y_t, f_t) = self.outputs(source.x, target.x)
        y_s, f_s, y_t, f_t = (at_least_float32(value) for value in (y_s, f_s, y_t, f_t))
        ce = F.cross_entropy(y_s, source.labels, reduction="none")
        self.observe(source, ce, [y_s[:, : self.split.num_source]])
        n = min(len(y_s), len(y_t))  # tllib's losses need as many source as target samples
        with torch.autocast(device_type=y_s.device.type, enabled=False):
            transfer = self.transfer(y_s[:n], f_s[:n], y_t[:n], f_t[:n], source.labels[:n])
        loss = self.source_loss(ce, source.labels)
        play.descend({"source": loss, **transfer}, "G", "C")
        return {"loss": loss.detach(), **{name: value.detach() for name, value in transfer.items()}}

    def source_loss(self, ce: Tensor, labels: Tensor) -> Tensor:
        """The source's term from its cross entropies."""
        return pooled_mean(ce)

    def outputs(self, x_s: Tensor, x_t: Tensor) -> Tuple[Outputs, Outputs]:
        """Logits and features of both domains."""
        if not self.joint:
            return self.net(self.backbone(x_s)), self.net(self.backbone(x_t))
        logits, features = self.net(self.backbone(torch.cat([x_s, x_t])))
        n = len(x_s)
        return (logits[:n], features[:n]), (logits[n:], features[n:])

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule(self.net(f), x, f)
