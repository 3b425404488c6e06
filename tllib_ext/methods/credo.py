r"""CREDO, Corrected and REweighted Divergence Optimisation: our own method, never told the noise rate.

The paper's method drops the share of each batch that the experimenter says is wrongly labelled. Outside of benchmarks
nobody knows that share, and at 45 % half of the data is thrown away. CREDO first asks what the labels must have been
(:mod:`tllib_ext.labels.transition`: features tell classes apart, wrong labels follow a transition matrix Q; the
posterior of the true class is :math:`r_{ik} \propto p(k \mid f_i)\, Q_{k \tilde y_i}`), then plays the paper's game on
what it believes:

* the label of sample i is :math:`\hat y_i = \arg\max_k r_{ik}`, its weight the confidence :math:`c_i = \max_k r_{ik}`,
  scaled to mean one;
* Steps A, B, C as in :mod:`tllib_ext.methods.divergence`, with batches balanced over :math:`\hat y`;
* the share to drop follows from the belief itself: the expected share of corrected labels that are still wrong,
  :math:`1 - \bar c`, and at least ``min_drop``, since the belief is made of the same features that the network sees;
* where G trains, the question is asked again with its better features, ``refresh`` times.

With clean labels the posterior keeps nearly all of them: nothing is changed and almost nothing is dropped.
"""

import io
from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Union

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

#: a share of wrong labels below this is none.
NO_DOUBT = 1e-3


@dataclass
class CredoHparams(DivergenceHparams):
    """The paper's method's constants, and how far to follow the belief."""

    weighted: bool = hparam(True, "ours", "weight samples by the confidence in their label")
    correct: bool = hparam(True, "ours", "learn the most probable label instead of the given one")
    min_drop: float = hparam(0.1, "ours", "least share of a batch to drop when labels were corrected")
    refresh: int = hparam(2, "ours", "how often the labels are estimated anew while G trains on images")


class Credo(Divergence):
    """The paper's game on corrected, weighted labels.

    Args:
        backbone (torch.nn.Module): G
        split (LabelSplit): the label sets
        hparams (CredoHparams): constants
    """

    Hparams = CredoHparams
    presets = {"default": {}}
    training_only = ("_extra_state",)

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[CredoHparams] = None):
        super().__init__(backbone, split, hparams)
        self.label_model: Optional[LabelModel] = None
        self._context: Optional[Context] = None

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self._context = context
        self._ask(current=False)
        # Frozen features say at the start all they will ever say; a G that trains is asked again.
        again = self.hparams.refresh if context.source_inputs is None else 0
        self._refresh_at = {round(context.steps * (i + 1) / (again + 2)) for i in range(again)}

    def _ask(self, current: bool) -> None:
        model = self.label_model = estimate_source_labels(self._context, self.split.num_source, current)
        self._conclude()
        changed = (self.labels.cpu() != torch.from_numpy(self._context.source_labels)).float().mean()
        summary = model.summary(self.split.source_classes)
        self._context.say(f"{summary}\n  {changed:.1%} of the labels changed, {self.drop_rate:.1%} of each batch dropped")

    def _conclude(self) -> None:
        """Labels, weights and the share to drop, from the posterior."""
        hp, device = self.hparams, next(self.parameters()).device
        posterior = torch.from_numpy(self.label_model.responsibilities.astype(np.float32)).to(device)
        given = torch.from_numpy(self._context.source_labels).to(device)
        own = posterior.gather(1, given[:, None]).squeeze(1)
        best = posterior.max(1)
        self.labels = torch.where((best.values > own) & hp.correct, best.indices, given)
        trust = posterior.gather(1, self.labels[:, None]).squeeze(1)
        self.weights = trust / trust.mean() if hp.weighted else torch.ones_like(trust)
        if hp.drop_rate not in (None, "auto"):
            return
        # Nothing to correct, nothing to distrust: with clean labels the least share would only lose data.
        least = min(hp.min_drop, self.label_model.rate)
        rate = max(float(1 - trust.mean()), least)
        # The rule keeps int((1 - rate) B) of B images: the faintest doubt would cost one image of every batch.
        self.drop_rate = rate if self.select and rate >= NO_DOUBT else 0.0

    def balance_labels(self, given: np.ndarray) -> np.ndarray:
        return self.labels.cpu().numpy()

    def labels_and_weights(self, source: Batch) -> Tuple[Tensor, Union[Tensor, float]]:
        return self.labels[source.index], self.weights[source.index]

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        if step in self._refresh_at:
            self._ask(current=True)
        return super().update(source, target, step, play)

    def get_extra_state(self) -> Tensor:
        """What is believed is part of the state: a run that goes on believes what it believed, to the last bit."""
        facts = {} if self.label_model is None else vars(self.label_model)
        plain = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in facts.items()}
        buffer = io.BytesIO()
        torch.save(plain, buffer)
        return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)  # as every part of a state, a tensor

    def set_extra_state(self, state: Tensor) -> None:
        """Undo :meth:`get_extra_state`; a saved model only predicts, and believes nothing."""
        if self._context is None:
            return
        facts = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True)
        arrays = {name: value.numpy() for name, value in facts.items() if isinstance(value, Tensor)}
        self.label_model = LabelModel(**{**facts, **arrays})
        self._conclude()
