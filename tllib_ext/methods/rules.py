r"""Rules that turn outputs into a prediction: by entropy or confidence, or by an output for the unknown class."""

import math
from typing import Optional

import torch
from torch import Tensor

from tllib_ext.errors import UserError
from tllib_ext.methods.base import Prediction

__all__ = ["EntropyRule", "predict_unknown_class"]


class EntropyRule:
    r"""Turn logits into a :class:`~tllib_ext.methods.base.Prediction` by entropy or confidence.

    ``entropy``: unknown iff :math:`H(p) > t \log K` (t = 0.5: DANCE, and GLC's source-only evaluation).
    ``confidence``: unknown iff :math:`\max_k p_k < t` (t = 0.5).

    Args:
        num_classes (int): K
        rule (str): ``"entropy"`` or ``"confidence"``
        threshold (float, optional): t; never tuned on target labels

    Examples::

        >>> rule = EntropyRule(2)
        >>> rule(torch.tensor([[9., 0.], [0., 0.]])).unknown
        tensor([False,  True])
    """

    def __init__(self, num_classes: int, rule: str = "entropy", threshold: Optional[float] = None):
        if rule not in ("entropy", "confidence"):
            raise UserError(f"unknown_rule={rule!r}: expected entropy or confidence")
        self.rule = rule
        share = 0.5 if threshold is None else float(threshold)
        if not 0 < share < 1:
            raise UserError(f"unknown_threshold={share}: expected a number between 0 and 1")
        self.threshold = share * math.log(num_classes) if rule == "entropy" else 1 - share

    def __call__(self, logits: Tensor) -> Prediction:
        return self.from_probs(logits.float().softmax(-1))

    def from_probs(self, probs: Tensor) -> Prediction:
        """The same for probabilities."""
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
