r"""`Combating Noisy Labels by Agreement: A Joint Training Method with Co-Regularization (JoCoR, CVPR 2020)
<https://arxiv.org/abs/2003.02752>`_, a reference for learning with noisy labels: it never looks at the target.

Two learners are trained by one loss that also pulls them together, and one selection by that same loss:

.. math::
    \ell(x, y) = (1 - \lambda) \big(CE(p_1, y) + CE(p_2, y)\big)
                 + \lambda \big(KL(p_1 \| p_2) + KL(p_2 \| p_1)\big), \quad
    L = \text{mean of the } R(s)\,B \text{ smallest } \ell, \quad R(s) = 1 - \tau \min(1, s / S_k)

The source loss of ``divergence`` is this one with 1 instead of :math:`1 - \lambda` and without the ramp.

Ours differs from the authors' in two ways: two heads on one backbone instead of two networks (half the cost, a shared
view of the images), and a ramp that is a share of the run (theirs: 10 of 200 epochs). Their code's default is
:math:`\lambda = 0.1` (presets ``default`` and ``code``), the paper's experiments have 0.9 (preset ``paper``). For
asymmetric noise their code halves :math:`\tau`: give ``drop_rate``. Unknown: by the entropy (or confidence) of the mean
probabilities.
"""

from dataclasses import dataclass
from typing import Dict

from torch import Tensor

from tllib_ext.alignment.divergence import divergences, joint_loss, pooled_small_loss
from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Players, hparam
from tllib_ext.methods.coteaching import CoTeaching, CoTeachingHparams

__all__ = ["JoCoR", "JoCoRHparams"]


@dataclass
class JoCoRHparams(CoTeachingHparams):
    """Hyper-parameters of JoCoR: co-teaching's and the weight of the agreement."""

    lam: float = hparam(0.1, "code; paper §4: 0.9 (CIFAR-10), 0.85 (CIFAR-100)", "weight of the agreement, 0 to 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam <= 1:
            raise UserError(f"hyper-parameter lam={self.lam}: expected a weight, 0 to 1")


class JoCoR(CoTeaching):
    """Two heads that agree, trained on what both find easy."""

    Hparams = JoCoRHparams
    hparams: JoCoRHparams
    presets = {"default": {}, "code": {}, "paper": {"lam": 0.9}}

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        self.heads.normalise_rows()
        logits = self.heads(self.backbone(source.x))
        ce = joint_loss(logits, source.labels, lam=0.0)
        self.observe(source, ce / 2, logits)
        lam = self.hparams.lam
        loss = (1 - lam) * ce + lam * divergences(logits)[0]
        kept = pooled_small_loss(loss, self.dropped(step))
        value = play.descend({"joint": pooled_mean(loss, kept)}, "G", "C")
        return {"loss": value, "kept": kept.float().mean()}
