r"""Mixture, our method without training: the label model and the target model on features, no gradient step.

The label model (:mod:`tllib_ext.labels.transition`) estimates the posterior of the true source labels, the target model
(:mod:`tllib_ext.target`) a mixture of K components tied to the source classes and free ones for unknown classes. The
posterior of that mixture is the prediction: unknown where :math:`p(\text{unknown} \mid x) > 1/2`. Frozen features are used
as they are, a backbone that could be trained as it is before the first step.
"""

from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
from torch import Tensor, nn

from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction
from tllib_ext.methods.context import Context
from tllib_ext.methods.posterior import TargetPosterior, posterior_prediction
from tllib_ext.modules.heads import FeatureBottleneck, FeatureIdentity
from tllib_ext.split import LabelSplit

__all__ = ["Mixture", "MixtureHparams"]


@dataclass
class MixtureHparams(Hparams):
    """There are none: every number is estimated."""


class Mixture(Method):
    """Label model and target model; nothing is trained."""

    Hparams = MixtureHparams
    training_free = True
    estimates_labels = True
    threshold = 0.5

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[MixtureHparams] = None):
        first = backbone[0] if isinstance(backbone, FeatureBottleneck) else None
        super().__init__(FeatureIdentity(first.in_features) if isinstance(first, nn.Linear) else backbone, split, hparams)
        self.label_model: Optional[LabelModel] = None
        self.target = TargetPosterior(split.num_source)

    def players(self) -> Dict[str, List[ParamGroup]]:
        return {}

    def prepare(self, context: Context) -> None:
        self.label_model, found = self.target.estimate(context)
        if self.label_model is not None and found is not None:
            names = self.split.source_classes
            context.say(f"{self.label_model.summary(names)}\n{found.summary(names)}")

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        return {}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        return posterior_prediction(self.target(x, self.backbone(x)))

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *more: object) -> None:
        if f"{prefix}_extra_state" in state_dict:  # release 0.2
            state_dict[f"{prefix}target._extra_state"] = state_dict.pop(f"{prefix}_extra_state")
        super()._load_from_state_dict(state_dict, prefix, *more)
