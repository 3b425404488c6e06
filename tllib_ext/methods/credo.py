r"""CREDO, Corrected and REweighted Divergence Optimisation: our own method, which needs no noise rate.

The paper's method drops the share of each batch that the experimenter gives as wrongly labelled. Outside of benchmarks
nobody knows that share, and at 45 % half of the data is lost. CREDO first estimates the true labels
(:mod:`tllib_ext.labels.transition`: features separate the classes, wrong labels follow a transition matrix Q; the
posterior of the true class is :math:`r_{ik} \propto p(k \mid f_i)\, Q_{k \tilde y_i}`), then runs the paper's steps on
the estimate:

* the label of sample i is :math:`\hat y_i = \arg\max_k r_{ik}`, its weight the confidence :math:`c_i = \max_k r_{ik}`,
  scaled to mean one;
* Steps A, B, C as in :mod:`tllib_ext.methods.divergence`, with batches balanced over :math:`\hat y`;
* the share to drop is the expected share of corrected labels that are still wrong, :math:`1 - \bar c`, and at least
  ``min_drop``, since the posterior comes from the same features as the network's input;
* where G trains, the labels are estimated again from its better features, ``refresh`` times.

With clean labels the posterior keeps nearly all of them: nothing is changed and almost nothing is dropped.
"""

import io
from dataclasses import dataclass
from typing import Dict, Optional, Set, Tuple, Union

import numpy as np
import torch
from torch import Tensor, nn

from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.base import Batch, Players, hparam
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import Divergence, DivergenceHparams
from tllib_ext.methods.selection import estimate_source_labels
from tllib_ext.split import LabelSplit

__all__ = ["Credo", "CredoHparams"]

#: a smaller share of wrong labels counts as none.
NEGLIGIBLE_RATE = 1e-3


@dataclass
class CredoHparams(DivergenceHparams):
    """The constants of the paper's method, and how the estimated labels are used."""

    weighted: bool = hparam(True, "ours", "weight samples by the confidence in their label")
    correct: bool = hparam(True, "ours", "learn the most probable label instead of the given one")
    min_drop: float = hparam(0.1, "ours", "least share of a batch to drop when labels were corrected")
    refresh: int = hparam(2, "ours", "how often the labels are estimated anew while G trains on images")


class Credo(Divergence):
    """The paper's method on corrected, weighted labels.

    Args:
        backbone (torch.nn.Module): G
        split (LabelSplit): the label sets
        hparams (CredoHparams): constants
    """

    Hparams = CredoHparams
    hparams: CredoHparams
    presets = {"default": {}}
    training_only = ("_extra_state",)

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[CredoHparams] = None):
        super().__init__(backbone, split, hparams)
        self._context: Optional[Context] = None
        self._refresh_at: Set[int] = set()

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self._context = context
        self._estimate(context, current=False)
        # Frozen features do not change during training; those of a G that trains do.
        again = self.hparams.refresh if context.source_inputs is None else 0
        self._refresh_at = {round(context.steps * (i + 1) / (again + 2)) for i in range(again)}

    def _estimate(self, context: Context, current: bool) -> None:
        model = estimate_source_labels(context, self.split.num_source, current)
        self._use(model, context)
        changed = (self._learnt != torch.as_tensor(context.source_labels)).float().mean()
        summary = model.summary(self.split.source_classes)
        context.say(f"{summary}\n  {changed:.1%} of the labels changed, {self.drop_rate:.1%} of each batch dropped")

    def _use(self, model: LabelModel, context: Context) -> None:
        """Set labels, weights and the share to drop from the posterior."""
        self.label_model = model
        hp, device = self.hparams, next(self.parameters()).device
        posterior = torch.from_numpy(model.responsibilities.astype(np.float32))  # on the host, like everything of the estimate
        given = torch.as_tensor(context.source_labels)
        own = posterior.gather(1, given[:, None]).squeeze(1)
        best = posterior.max(1)
        self._learnt = torch.where((best.values > own) & hp.correct, best.indices, given)
        confidence = posterior.gather(1, self._learnt[:, None]).squeeze(1)
        weights = confidence / confidence.mean() if hp.weighted else torch.ones_like(confidence)
        self.labels, self.weights = self._learnt.to(device), weights.to(device)
        if hp.drop_rate not in (None, "auto"):
            return
        # With clean labels there is nothing to drop: min_drop would only lose data.
        rate = max(float(1 - confidence.mean()), min(hp.min_drop, model.rate))
        # The rule keeps int((1 - rate) B) of B images: the smallest positive rate would cost one image of every batch.
        self.drop_rate = rate if self.select and rate >= NEGLIGIBLE_RATE else 0.0

    def balance_labels(self, given: np.ndarray) -> np.ndarray:
        return self._learnt.numpy()

    def labels_and_weights(self, source: Batch) -> Tuple[Tensor, Union[Tensor, float]]:
        return self.labels[source.index], self.weights[source.index]

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        if step in self._refresh_at and self._context is not None:
            self._estimate(self._context, current=True)
        return super().update(source, target, step, play)

    def get_extra_state(self) -> Tensor:
        """The estimate is part of the state, so that a resumed run continues with the same labels."""
        facts = {} if self.label_model is None else vars(self.label_model)
        plain = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in facts.items()}
        buffer = io.BytesIO()
        torch.save(plain, buffer)
        return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)  # every part of a state is a tensor

    def set_extra_state(self, state: Tensor) -> None:
        """Undo :meth:`get_extra_state`; a saved model only predicts and needs no estimate."""
        if self._context is None:
            return
        facts = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True)
        arrays = {name: value.numpy() for name, value in facts.items() if isinstance(value, Tensor)}
        self._use(LabelModel(**{**facts, **arrays}), self._context)
