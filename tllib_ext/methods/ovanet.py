r"""`OVANet: One-vs-All Network for Universal Domain Adaptation (ICCV 2021) <https://arxiv.org/abs/2104.03344>`_.

A closed-set head C1 predicts the class; an open-set head C2 has one binary classifier per class, with
:math:`o_k^1` = "is class k" and :math:`o_k^0` = "is not". On the source each sample trains its own class's classifier
as positive and the *hardest* other one as negative, on the target the binary entropies are minimised:

.. math::
    L_{ova} &= -\log o_y^1 - \min_{k \ne y} \log o_k^0 \\
    L_{ent} &= \frac{1}{K} \sum_k H(o_k^0, o_k^1) \\
    L &= CE + \tfrac{1}{2} \bar L_{ova} + \lambda \bar L_{ent},
    \qquad \text{unknown iff } o_{\hat y}^0 > \tfrac{1}{2},\ \hat y = \arg\max_k p_k

The one half and the 1e-8 inside the logarithms are the authors' code, not the paper's text (preset ``paper``). C1 has
neither bias nor normalisation nor temperature; C2 has no bias, and its rows are rescaled to unit length at the start of
every iteration. The code trains in half precision, we compute the losses in float32.
"""

import math
from dataclasses import dataclass
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam, inverse_decay
from tllib_ext.split import LabelSplit

__all__ = ["OVANet", "OVANetHparams", "one_vs_all", "binary_entropy", "log_plus"]


def log_plus(log_p: Tensor, eps: float) -> Tensor:
    """log(p + eps)"""
    return torch.logaddexp(log_p, torch.full_like(log_p, math.log(eps))) if eps else log_p


def one_vs_all(logits: Tensor, labels: Tensor, eps: float = 0.0) -> Tuple[Tensor, Tensor]:
    r"""The positive and the hardest negative loss of each sample.

    Shape:
        - logits: :math:`(N, 2, K)`, index 0 of the middle axis = "not this class"; labels: :math:`(N, )`
        - Outputs: :math:`(N, )` each

    Examples::

        >>> positive, negative = one_vs_all(torch.zeros(1, 2, 3), torch.tensor([0]))
        >>> round(positive.item(), 4), round(negative.item(), 4)
        (0.6931, 0.6931)
    """
    log_not, log_is = log_plus(F.log_softmax(logits.float(), dim=1), eps).unbind(1)
    positive = -log_is.gather(1, labels.unsqueeze(1)).squeeze(1)
    own = F.one_hot(labels, logits.shape[2]).bool()
    return positive, (-log_not).masked_fill(own, -math.inf).max(1).values


def binary_entropy(logits: Tensor, eps: float = 0.0) -> Tensor:
    r"""Entropy of the binary classifiers, averaged over the classes.

    Shape:
        - logits: :math:`(N, 2, K)`
        - Outputs: :math:`(N, )`
    """
    log_o = F.log_softmax(logits.float(), dim=1)
    return -(log_o.exp() * log_plus(log_o, eps)).sum(1).mean(1)


@dataclass
class OVANetHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    lam: float = hparam(0.1, "paper §4, code: multi", "weight of the target's binary entropy")
    ova_weight: float = hparam(0.5, "code; paper: 1", "weight of the one-vs-all loss beside the cross entropy")
    eps: float = hparam(1e-8, "code; paper: 0", "epsilon inside the logarithms of the one-vs-all terms; 0 is exact")
    decay_to_last: bool = hparam(False, "ours; code: true", "the learning rate decays over S - 1 steps, not over S")


class OVANet(Method):
    """One-vs-all classifiers whose "not this class" output detects unknown images."""

    Hparams = OVANetHparams
    presets = {"default": {}, "code": {"decay_to_last": True}, "paper": {"ova_weight": 1.0, "eps": 0.0}}
    hparams: OVANetHparams
    threshold = 0.5

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[OVANetHparams] = None):
        super().__init__(backbone, split, hparams)
        self.closed = nn.Linear(self.features_dim, split.num_source, bias=False)
        self.open = nn.Linear(self.features_dim, 2 * split.num_source, bias=False)

    def lr_factor(self, step: int, steps: int) -> float:
        return inverse_decay(step / max(1, steps - self.hparams.decay_to_last))

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        with torch.no_grad():
            self.open.weight.copy_(F.normalize(self.open.weight, dim=1))
        hp = self.hparams
        f_s = self.backbone(source.x)
        logits = self.closed(f_s)
        ce = F.cross_entropy(logits.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits])
        positive, negative = one_vs_all(self._one_vs_all(f_s), source.labels, hp.eps)
        ent = binary_entropy(self._one_vs_all(self.backbone(target.x)), hp.eps)
        terms = {"source": pooled_mean(ce), "ova": hp.ova_weight * pooled_mean(positive + negative),
                 "entropy": hp.lam * pooled_mean(ent)}  # fmt: skip
        play.descend(terms, "G", "C")
        return {"loss": terms["source"].detach(), "ova": terms["ova"].detach(), "entropy": ent.detach().mean()}

    def _one_vs_all(self, f: Tensor) -> Tensor:
        return self.open(f).unflatten(1, (2, -1))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        probs = self.closed(f).float().softmax(-1)
        nots = self._one_vs_all(f).float().softmax(1)[:, 0]
        score = nots.gather(1, probs.argmax(1, keepdim=True)).squeeze(1)
        return Prediction(probs, score, score > self.threshold)
