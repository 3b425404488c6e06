r"""Rules that turn outputs into a prediction: by entropy, confidence or the target model, or by an output for unknown."""

import math
from typing import Optional

import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError
from tllib_ext.methods.base import Prediction
from tllib_ext.methods.context import Context
from tllib_ext.methods.posterior import TargetPosterior

__all__ = ["EntropyRule", "predict_unknown_class"]


class EntropyRule(nn.Module):
    r"""Turn logits into a :class:`~tllib_ext.methods.base.Prediction` by entropy, by confidence or by the target model.

    ``entropy``: unknown iff :math:`H(p) > t \log K` (t = 0.5: DANCE, and GLC's source-only evaluation).
    ``confidence``: unknown iff :math:`\max_k p_k < t` (t = 0.5).
    ``target-model``: unknown iff its posterior by :mod:`tllib_ext.target`, on frozen features or those of G, is above t = 0.5.
    The class stays that of the logits.

    Args:
        num_classes (int): K
        rule (str): ``"entropy"``, ``"confidence"`` or ``"target-model"``
        threshold (float, optional): t; never tuned on target labels

    Examples::

        >>> rule = EntropyRule(2)
        >>> rule(torch.tensor([[9., 0.], [0., 0.]])).unknown
        tensor([False,  True])
    """

    def __init__(self, num_classes: int, rule: str = "entropy", threshold: Optional[float] = None):
        super().__init__()
        if rule not in ("entropy", "confidence", "target-model"):
            raise UserError(f"unknown_rule={rule!r}: expected entropy, confidence or target-model")
        self.rule = rule
        share = 0.5 if threshold is None else float(threshold)
        if not 0 < share < 1:
            raise UserError(f"unknown_threshold={share}: expected a number between 0 and 1")
        self.threshold = {"entropy": share * math.log(num_classes), "confidence": 1 - share, "target-model": share}[rule]
        self.target = TargetPosterior(num_classes) if rule == "target-model" else None

    def estimate(self, context: Context) -> None:
        """Fit the target model: once to frozen features, anew at every call to those of a G that trains."""
        if self.target is None or (self.target.ready and self.target.on_inputs):
            return
        model = self.target.estimate(context)[1]
        if model is not None:
            context.say(model.summary())

    def forward(self, logits: Tensor, inputs: Optional[Tensor] = None, features: Optional[Tensor] = None) -> Prediction:
        return self.from_probs(logits.float().softmax(-1), inputs, features)

    def from_probs(self, probs: Tensor, inputs: Optional[Tensor] = None, features: Optional[Tensor] = None) -> Prediction:
        """The same for probabilities; the target model also needs G's inputs and output."""
        if self.target is not None:
            if inputs is None or features is None:
                raise ValueError("the rule target-model needs the inputs and the features of G")
            score = self.target(inputs, features)[:, -1]
        else:
            score = torch.special.entr(probs).sum(-1) if self.rule == "entropy" else 1 - probs.max(-1).values
        return Prediction(probs, score, score > self.threshold)


def predict_unknown_class(logits: Tensor, unknown: int) -> Prediction:
    r"""The prediction of a classifier with an output for unknown: unknown iff that output is the largest.

    The score is what decides, the unknown class's logit minus the largest other one, and the threshold is 0. (The
    probability of the unknown class ranks otherwise: it depends on how the rest is spread over the known classes.)

    Args:
        logits (tensor): :math:`(N, K + 1)`
        unknown (int): index of the unknown class, K

    Examples::

        >>> predict_unknown_class(torch.tensor([[1., 0., 2.], [3., 0., 2.]]), unknown=2).score
        tensor([ 1., -1.])
    """
    known = logits.float()[:, :unknown]
    score = logits.float()[:, unknown] - known.max(-1).values
    return Prediction(known.softmax(-1), score, score > 0)
