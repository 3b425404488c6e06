r"""Source only: cross entropy on the given labels, nothing else; the floor of every table.

The paper does not describe how its SO row was made. Here: one cosine head as in DANCE, the same optimiser, batches and
number of steps as the other methods, and the customary entropy rule :math:`H(p) > \frac{1}{2} \log K` for unknown.
Target images are never looked at, so the batch-norm statistics are the source's.
"""

from dataclasses import dataclass
from typing import Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.heads import CosineHead
from tllib_ext.split import LabelSplit

__all__ = ["SourceOnly", "SourceOnlyHparams"]


@dataclass
class SourceOnlyHparams(Hparams):
    """Hyper-parameters of source-only training."""

    temperature: float = hparam(0.05, "DANCE's head", "of the cosine head")
    unknown_rule: str = hparam("entropy", "DANCE, GLC", "entropy, confidence or target-model")
    unknown_threshold: Optional[float] = hparam(None, "customary", "share of log K, least confidence or posterior; 0.5")


class SourceOnly(Method):
    """Cross entropy on the source."""

    Hparams = SourceOnlyHparams
    hparams: SourceOnlyHparams
    uses_target = False

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[SourceOnlyHparams] = None):
        super().__init__(backbone, split, hparams)
        self.head = CosineHead(self.features_dim, split.num_source, self.hparams.temperature)
        self.rule = EntropyRule(split.num_source, self.hparams.unknown_rule, self.hparams.unknown_threshold)
        self.threshold = self.rule.threshold

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        self.head.normalise_rows()
        logits = self.head(self.backbone(source.x))
        ce = F.cross_entropy(logits.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits])
        return {"loss": play.descend({"source": pooled_mean(ce)}, "G", "C")}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule(self.head(f), x, f)
