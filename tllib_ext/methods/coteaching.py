r"""`Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels (NeurIPS 2018)
<https://arxiv.org/abs/1804.06872>`_, a reference for learning with noisy labels: it never looks at the target.

Two learners see the same batch; each chooses the samples of smallest loss, and each is trained on the *other's* choice,
so that the errors of one are not confirmed by itself. The share that is dropped grows from nothing to :math:`\tau`:

.. math::
    D_h = \text{the } R(s)\,B \text{ samples of smallest } CE_h, \quad
    R(s) = 1 - \tau \min(1, s / S_k), \quad
    L = \overline{CE_1}(D_2) + \overline{CE_2}(D_1)

Ours differs from the authors' in three ways. The learners are two heads on one backbone, not two networks: half the
cost, at the price of a shared view of the images. The ramp :math:`S_k` is a share of the run (theirs: 10 of 200
epochs). And the loss is the mean over the chosen samples: the authors' code divides that mean by their number once
more, which Adam does not notice and SGD does. Unknown: by the entropy (or confidence) of the mean probabilities.
"""

from dataclasses import dataclass
from typing import Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.alignment.divergence import pooled_small_loss
from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.methods.selection import DropRate, check_drop_rate, resolve_drop_rate
from tllib_ext.modules.heads import Heads, mean_probabilities
from tllib_ext.split import LabelSplit

__all__ = ["CoTeaching", "CoTeachingHparams"]


@dataclass
class CoTeachingHparams(Hparams):
    """Hyper-parameters of co-teaching."""

    drop_rate: DropRate = hparam(
        None, "paper §3: the true noise rate", "tau, share of a batch to drop; none = --rate; auto = estimate it"
    )
    ramp: float = hparam(0.1, "ours; paper: 10 of 200 epochs", "share of the run over which the dropped part grows to tau")
    temperature: float = hparam(0.05, "DANCE's head", "of the two cosine heads")
    unknown_rule: str = hparam("entropy", "DANCE, GLC", "entropy, confidence or target-model")
    unknown_threshold: Optional[float] = hparam(None, "customary", "share of log K, least confidence or posterior; 0.5")

    def __post_init__(self) -> None:
        check_drop_rate(self.drop_rate)
        if not 0 <= self.ramp <= 1:
            raise UserError(f"hyper-parameter ramp={self.ramp}: expected a share of the run, 0 to 1")


class CoTeaching(Method):
    """Two heads, each trained on what the other one finds easy."""

    Hparams = CoTeachingHparams
    hparams: CoTeachingHparams
    uses_target = False

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[CoTeachingHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.heads = Heads(self.features_dim, k, temperature=hp.temperature)
        self.rule = EntropyRule(k, hp.unknown_rule, hp.unknown_threshold)
        self.threshold = self.rule.threshold
        self.drop_rate, self.ramp_steps = 0.0, 0.0

    def prepare(self, context: Context) -> None:
        self.drop_rate = resolve_drop_rate(self.hparams.drop_rate, context, self.split.source_classes)
        self.ramp_steps = self.hparams.ramp * context.steps

    def dropped(self, step: int) -> float:
        """The share of the batch that is dropped at ``step``: grows from 0 to tau."""
        return self.drop_rate * (min(1.0, step / self.ramp_steps) if self.ramp_steps else 1.0)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        self.heads.normalise_rows()
        logits = self.heads(self.backbone(source.x))
        ce = [F.cross_entropy(head.float(), source.labels, reduction="none") for head in logits]
        self.observe(source, (ce[0] + ce[1]) / 2, logits)
        chosen = [pooled_small_loss(values, self.dropped(step)) for values in ce]
        terms = {"head 1": pooled_mean(ce[0], chosen[1]), "head 2": pooled_mean(ce[1], chosen[0])}
        loss = play.descend(terms, "G", "C")
        return {"loss": loss / 2, "kept": chosen[0].float().mean(), "agree": (chosen[0] == chosen[1]).float().mean()}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule.from_probs(mean_probabilities(self.heads(f)), x, f)
