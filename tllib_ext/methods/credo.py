r"""CREDO, Corrected and REweighted Divergence Optimisation: our own method, which needs no noise rate and no threshold.

The paper's method drops the share of each batch that the experimenter gives as wrongly labelled, and separates the target
at a fixed border :math:`\delta`. CREDO estimates both. The label model (:mod:`tllib_ext.labels.transition`) gives the posterior
of the true source labels, the target model (:mod:`tllib_ext.target`) that of the classes and *unknown* of the target:

* the label of source sample i is the most probable one, its weight the confidence :math:`c_i` in it, scaled to mean one;
  the share to drop is :math:`1 - \bar c`, the expected share of corrected labels that are still wrong, and at least
  ``min_drop``, since the posterior comes from the same features as the network's input;
* a target sample whose probability of unknown is u is pushed with the weight and the sign of :math:`1 - 2u`: the heads' crs
  and entropy fall where it is known and rise where it is unknown;
* target samples of one class with a posterior above ``sure`` are learnt as labelled samples of it;
* Steps B and C of the paper are left out: on top of the above they made nothing better.

Both are estimated once, before the first step: estimates from the features of a G that trains confirm what it has learnt, wrong
or right. For predictions the target model is fitted to G's present features.

Where G is the rest of a pretrained network from a stage on, the first estimate decides whether anything is trained: where the
known groups of the target lie close to their classes, with a mean cosine of ``fits`` or more, the features fit, nothing is
trained, and the prediction is that of ``mixture`` on the same features.

Unknown is what the target model, on frozen features or on those of a G that trains, gives a posterior above one half. The
probabilities of the classes are the mean of its own and the heads'.
"""

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from tllib_ext.alignment.divergence import mean_distribution_entropy
from tllib_ext.distributed import pooled_mean
from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.base import Batch, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import Divergence, DivergenceHparams
from tllib_ext.methods.posterior import TargetPosterior, posterior_prediction
from tllib_ext.methods.selection import DropRate
from tllib_ext.modules.heads import mean_probabilities
from tllib_ext.split import LabelSplit

__all__ = ["Credo", "CredoHparams"]

#: a smaller share of wrong labels counts as none.
NEGLIGIBLE_RATE = 1e-3


@dataclass
class CredoHparams(DivergenceHparams):
    """The constants of the paper's method, and how the estimates are used; delta and its margins serve without a target model."""

    drop_rate: DropRate = hparam(None, "ours", "share to drop; none and auto: by the label model")
    min_drop: float = hparam(0.1, "ours", "least share of a batch to drop when labels were corrected")
    fits: float = hparam(
        0.3, "ours", "from a stage on: least cosine of target groups with their class at which nothing is trained"
    )
    sure: float = hparam(0.9, "ours", "least posterior of a class with which a target sample is learnt as one of it")


class Credo(Divergence):
    """The paper's separation on corrected, weighted labels and estimated unknowns."""

    Hparams = CredoHparams
    hparams: CredoHparams
    presets = {"default": {}}
    estimates_labels = True
    stage_steps = 25
    #: False where the features fit as they are
    trains: Tensor

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[CredoHparams] = None):
        super().__init__(backbone, split, hparams)
        self.plays = False
        self.target = TargetPosterior(split.num_source)
        self._posterior: Optional[Tensor] = None  # of the target samples, in list order
        self.register_buffer("trains", torch.tensor(True))
        self._trains = True  # the same on the host

    @property
    def threshold(self) -> float:  # type: ignore[override]  # of the posterior; models of release 0.2 have none
        return 0.5 if self.target.ready else super().threshold

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        labels, target = self.target.estimate(context)
        if labels is None or target is None:
            return
        self._use(labels, context)
        self._posterior = torch.from_numpy(target.posterior).float().to(self.labels.device)
        changed = (self._learnt != torch.as_tensor(context.source_labels)).float().mean()
        context.say(
            f"{labels.summary(self.split.source_classes)}\n  {changed:.1%} of the labels changed, "
            f"{self.selection.drop_rate:.1%} of each batch dropped\n{target.summary(self.split.source_classes)}"
        )
        if context.part_frozen:
            self._decide(target.closeness, context)

    def _decide(self, closeness: float, context: Context) -> None:
        """Whether to train, by the cosine of the target's groups with their classes."""
        self._trains = closeness < self.hparams.fits
        self.trains.fill_(self._trains)
        facts = f"the cosine of target groups with their class is {closeness:.2f}, the border {self.hparams.fits:g}"
        context.say(
            f"the features are to be trained: {facts}" if self._trains else f"the features fit, nothing is trained: {facts}"
        )

    def _set_drop_rate(self, context: Context) -> None:
        """By the label model, in :meth:`_use`; the noise rate of the run is not read."""

    def _use(self, model: LabelModel, context: Context) -> None:
        """Set labels, weights and the share to drop from the posterior."""
        self.label_model = model
        hp, device = self.hparams, next(self.parameters()).device
        posterior = torch.from_numpy(model.responsibilities.astype(np.float32))  # on the host, like everything of the estimate
        given = torch.as_tensor(context.source_labels)
        own = posterior.gather(1, given[:, None]).squeeze(1)
        best = posterior.max(1)
        self._learnt = torch.where(best.values > own, best.indices, given)
        confidence = posterior.gather(1, self._learnt[:, None]).squeeze(1)
        self.labels, self.weights = self._learnt.to(device), (confidence / confidence.mean()).to(device)
        if hp.drop_rate not in (None, "auto"):
            return
        # With clean labels there is nothing to drop: min_drop would only lose data.
        rate = max(float(1 - confidence.mean()), min(hp.min_drop, model.rate))
        # The rule keeps int((1 - rate) B) of B images: the smallest positive rate would cost one image of every batch.
        self.selection.drop_rate = rate if self.selects and rate >= NEGLIGIBLE_RATE else 0.0

    def balance_labels(self, given: np.ndarray) -> np.ndarray:
        return self._learnt.numpy()

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        return super().update(source, target, step, play) if self._trains else {"loss": source.x.new_zeros(())}

    def step_a1(self, source: Batch, play: Players, warm: bool) -> Tuple[Tensor, Tensor]:
        """The paper's, with the most probable labels and the confidence in them."""
        return self.learn(source, self.labels[source.index], play, warm, self.weights[source.index])

    def step_a2(self, target: Batch, play: Players, warm: bool) -> List[Tensor]:
        """Each target sample moves to the side that the target model gives it, and sure ones are learnt as labelled."""
        if self._posterior is None:
            return super().step_a2(target, play, warm)
        logits = self.heads(self.backbone(target.x))
        if not warm:
            self._follow(logits)
        play.descend(self.target_terms(logits, self._posterior[target.index], warm), "G", "C")
        return [head.detach() for head in logits]

    def target_terms(self, logits: List[Tensor], posterior: Tensor, warm: bool) -> Dict[str, Tensor]:
        """The weighted terms of the target, given the posterior of its classes and unknown; during the warm-up without crs."""
        side, best = 1 - 2 * posterior[:, -1], posterior[:, :-1].max(1)
        terms = {}
        if self.separation.crs_weight and not warm:
            terms["crs"] = self.separation.crs_weight * pooled_mean(side * self.minimax.crs(logits))
        pseudo = best.values * self.plain.losses(logits, best.indices)
        terms["pseudo"] = pooled_mean(torch.where(best.values > self.hparams.sure, pseudo, 0.0))
        if self.separation.ent_weight:
            entropy = mean_distribution_entropy(logits, self.hparams.ent_eps)
            terms["ent"] = self.separation.ent_weight * pooled_mean(side * entropy)
        return terms

    def known(self, logits: List[Tensor], target: Batch) -> Tensor:
        return super().known(logits, target) if self._posterior is None else self._posterior[target.index, -1] < 0.5

    def refresh(self) -> None:
        super().refresh()
        if self.context is not None and not self.target.on_inputs and self._trains:
            self.target.estimate(self.context, self.label_model)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        if not self.target.ready:
            return super().predict(x)
        f = self.backbone(x)
        probs, score, unknown = posterior_prediction(self.target(x, f))
        heads = torch.where(self.trains, mean_probabilities(self.heads(f)), probs)
        return Prediction((probs + heads) / 2, score, unknown)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *more: object) -> None:
        state_dict.setdefault(f"{prefix}trains", torch.tensor(True))  # earlier releases always trained
        super()._load_from_state_dict(state_dict, prefix, *more)
