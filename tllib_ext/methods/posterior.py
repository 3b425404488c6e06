"""The target model as a part of a method: estimated from features, saved with the weights, asked one sample at a time."""

import io
from dataclasses import replace
from typing import Dict, Optional, Tuple, cast

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from tllib_ext.errors import UserError
from tllib_ext.labels.cached import estimate_once
from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.base import Prediction
from tllib_ext.methods.context import Context
from tllib_ext.target import TargetModel, estimate_target
from tllib_ext.target.diagnosis import warnings_of
from tllib_ext.target.embedding import Embedding
from tllib_ext.target.mixture import Mixture
from tllib_ext.target.model import TargetClassifier

__all__ = ["TargetPosterior", "estimated_target", "posterior_prediction", "with_unknown"]


class TargetPosterior(nn.Module):
    r"""Posterior of the K source classes and *unknown*, once :meth:`estimate` was called or a saved one was loaded.

    It works on G's inputs where these are frozen features, else on G's output.

    Shape:
        - inputs: :math:`(N, *)` of G, features: :math:`(N, D)` of G; Outputs: :math:`(N, K + 1)`
    """

    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        #: what the last estimate found; a loaded model only has the classifier
        self.model: Optional[TargetModel] = None
        self.on_inputs = False
        self._classify: Optional[TargetClassifier] = None
        self._first_share: Optional[float] = None

    @property
    def ready(self) -> bool:
        """Whether there is something to predict with."""
        return self._classify is not None

    def estimate(
        self, context: Context, labels: Optional[LabelModel] = None
    ) -> Tuple[Optional[LabelModel], Optional[TargetModel]]:
        """Fit the target model; returns it after the label model, both None if the features are not finite.

        Args:
            context (Context): labels and features of the run
            labels (LabelModel, optional): of the source; estimated from the same features where it is not given
        """
        source, target = context.source_inputs, context.target_inputs
        self.on_inputs = source is not None and target is not None
        if not self.on_inputs:
            source, target = context.whole("source"), context.whole("target")
        x_s, x_t = (cast(Tensor, x).float().cpu().numpy() for x in (source, target))
        if not (np.isfinite(x_s).all() and np.isfinite(x_t).all()):
            return None, None  # training has diverged; the evaluation says at which step
        if labels is None:
            if context.source_labels is None:
                raise UserError("estimating the labels needs the given ones: pass source_labels")
            labels = estimate_once(x_s, context.source_labels, self.num_classes, context.seed)
        self.model = self._with_change(estimate_target(x_s, labels.responsibilities, x_t, context.seed, context.unknown_share))
        self._classify = self.model.predict
        return labels, self.model

    def _with_change(self, model: TargetModel) -> TargetModel:
        """The interval of the share includes the first estimate: a G that trains may move unknown samples into a class, and the
        features that it makes then agree with it."""
        if self._first_share is None:
            self._first_share = model.share
            return model
        low, high = model.share_interval
        interval = min(low, self._first_share), max(high, self._first_share)
        known = model.share_known and low <= self._first_share <= high
        texts = warnings_of(model.share, interval, known, model.closeness, len(model.posterior))
        return replace(model, share_interval=interval, share_known=known, warnings=texts)

    def forward(self, inputs: Tensor, features: Tensor) -> Tensor:
        if self._classify is None:
            raise UserError("the target model is not estimated yet: call prepare, or load a saved model")
        x = inputs if self.on_inputs else features
        return torch.from_numpy(self._classify(x.detach().float().cpu().numpy())).float().to(inputs.device)

    def get_extra_state(self) -> Tensor:
        """The classifier; every part of a state is a tensor."""
        buffer = io.BytesIO()
        if self._classify is not None:
            first = {**vars(self._classify.embedding), "on_inputs": self.on_inputs}
            parts = [first, *map(vars, self._classify.mixtures)]
            torch.save([{key: torch.as_tensor(value) for key, value in part.items()} for part in parts], buffer)
        return torch.frombuffer(bytearray(buffer.getbuffer()) or bytearray(1), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Undo :meth:`get_extra_state`."""
        if state.numel() <= 1:
            return
        saved = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True)
        first, *rest = [{key: value.numpy() for key, value in part.items()} for part in saved]
        if len(first["prototypes"]) != self.num_classes:
            raise RuntimeError(f"the target model has {len(first['prototypes'])} classes, not {self.num_classes}")
        self.on_inputs = bool(first.pop("on_inputs", False))
        self._classify = TargetClassifier(Embedding(**first), [Mixture(**part) for part in rest])

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *more: object) -> None:
        # Models of release 0.2 have no target model, or have it one level up.
        state_dict.setdefault(f"{prefix}_extra_state", torch.zeros(1, dtype=torch.uint8))
        super()._load_from_state_dict(state_dict, prefix, *more)


def estimated_target(method: nn.Module) -> Optional[TargetModel]:
    """The target model that a method, or its rule for unknown, has estimated; None where it has none."""
    holders = (method, getattr(method, "rule", None))
    return next((found for part in holders if (found := getattr(getattr(part, "target", None), "model", None)) is not None), None)


def posterior_prediction(posterior: Tensor) -> Prediction:
    r"""The prediction by a posterior: unknown iff its probability is above one half, which is also the score.

    Shape:
        - posterior: :math:`(N, K + 1)`, unknown last

    Examples::

        >>> out = posterior_prediction(torch.tensor([[0.3, 0.1, 0.6], [0.6, 0.2, 0.2]]))
        >>> out.unknown, out.probs
        (tensor([ True, False]), tensor([[0.7500, 0.2500],
                [0.7500, 0.2500]]))
    """
    known = posterior[:, :-1] + 1e-12  # uniform where the posterior of unknown is one
    return Prediction(known / known.sum(1, keepdim=True), posterior[:, -1], posterior[:, -1] > 0.5)


def with_unknown(
    probs: np.ndarray, score: np.ndarray, unknown: np.ndarray, level: Optional[Tuple[float, float]] = None
) -> np.ndarray:
    r"""A posterior of K classes and unknown from any method's prediction, that decides as the method does.

    The part of unknown is the score where that is a posterior (``level`` (0.5, 0)), :math:`\sigma((s - t) / h)` with
    ``level`` (t, h) the threshold and the mean distance of the target's scores from it, else 3/4 or 1/4 by the decision.

    Shape:
        - probs: :math:`(N, K)`, score, unknown: :math:`(N,)`; Outputs: :math:`(N, K + 1)`

    Examples::

        >>> with_unknown(np.array([[0.8, 0.2]]), np.array([0.9]), np.array([True]))
        array([[0.2 , 0.05, 0.75]])
    """
    if level is None:
        part = np.where(unknown, 0.75, 0.25)
    else:
        part = score if level[1] == 0 else expit((score - level[0]) / level[1])
    part = np.where(unknown, np.maximum(part, 0.501), np.minimum(part, 0.5)).astype(np.float64)
    return np.concatenate([probs * (1 - part)[:, None], part[:, None]], axis=1)
