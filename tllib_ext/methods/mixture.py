r"""Mixture, our method without training: the label model and the target model on features, no gradient step.

The label model (:mod:`tllib_ext.labels.transition`) estimates the posterior of the true source labels, the target model
(:mod:`tllib_ext.target`) a mixture of K components tied to the source classes and free ones for unknown classes. The
posterior of that mixture is the prediction: unknown where :math:`p(\text{unknown} \mid x) > 1/2`. Frozen features are used
as they are, a backbone that could be trained as it is before the first step.
"""

import io
from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError
from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction
from tllib_ext.methods.context import Context
from tllib_ext.methods.selection import estimate_source_labels
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.target import TargetModel, class_probabilities, estimate_target
from tllib_ext.target.embedding import Embedding
from tllib_ext.target.mixture import Mixture as TargetMixture
from tllib_ext.target.model import TargetClassifier

__all__ = ["Mixture", "MixtureHparams"]


@dataclass
class MixtureHparams(Hparams):
    """There are none: every number is estimated."""


class _Inputs(nn.Identity):
    """Frozen features as they are, in the place of a bottleneck."""

    def __init__(self, out_features: int):
        super().__init__()
        self.out_features = out_features


class Mixture(Method):
    """Label model and target model; nothing is trained.

    Args:
        backbone (torch.nn.Module): G; a bottleneck on frozen features is left out
        split (LabelSplit): the label sets
        hparams (MixtureHparams): none
    """

    Hparams = MixtureHparams
    training_free = True
    threshold = 0.5

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[MixtureHparams] = None):
        first = backbone[0] if isinstance(backbone, FeatureBottleneck) else None
        super().__init__(_Inputs(first.in_features) if isinstance(first, nn.Linear) else backbone, split, hparams)
        self.label_model: Optional[LabelModel] = None
        self.target_model: Optional[TargetModel] = None
        self._classify: Optional[TargetClassifier] = None

    def players(self) -> Dict[str, List[ParamGroup]]:
        return {}

    def prepare(self, context: Context) -> None:
        if context.source_features is None or context.target_features is None:
            raise UserError("the target model needs features of both domains: pass source_features and target_features")
        self.label_model = estimate_source_labels(context, self.split.num_source)
        self.target_model = estimate_target(
            context.source_features().numpy(), self.label_model.responsibilities, context.target_features().numpy(), context.seed
        )
        self._classify = self.target_model.predict
        context.say(
            f"{self.label_model.summary(self.split.source_classes)}\n{self.target_model.summary(self.split.source_classes)}"
        )

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        return {"loss": torch.zeros(())}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        if self._classify is None:
            raise UserError("the target model is not estimated yet: call prepare, or load a saved model")
        posterior = self._classify(self.backbone(x).float().cpu().numpy())
        probs = torch.from_numpy(class_probabilities(posterior)).float().to(x.device)
        score = torch.from_numpy(posterior[:, -1]).float().to(x.device)
        return Prediction(probs, score, score > self.threshold)

    def get_extra_state(self) -> Tensor:
        """The classifier; every part of a state is a tensor."""
        buffer = io.BytesIO()
        if self._classify is not None:
            parts = [vars(self._classify.embedding), *map(vars, self._classify.mixtures)]
            torch.save([{key: torch.as_tensor(value) for key, value in part.items()} for part in parts], buffer)
        return torch.frombuffer(bytearray(buffer.getbuffer()) or bytearray(1), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Undo :meth:`get_extra_state`."""
        if state.numel() > 1:
            saved = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True)
            first, *rest = [{key: value.numpy() for key, value in part.items()} for part in saved]
            if len(first["prototypes"]) != self.split.num_source:
                raise RuntimeError(f"the target model has {len(first['prototypes'])} classes, not {self.split.num_source}")
            self._classify = TargetClassifier(Embedding(**first), [TargetMixture(**part) for part in rest])
