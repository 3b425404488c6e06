r"""`DivideMix: Learning with Noisy Labels as Semi-supervised Learning (ICLR 2020) <https://arxiv.org/abs/2002.07394>`_, a
reference for learning with noisy labels: it never looks at the target.

A mixture of two Gaussians over each learner's losses gives the probability w that a label is right; the other learner
takes labels with :math:`w > 1/2` as labelled and the rest as unlabelled images. Targets are

.. math::
    q = \mathrm{sharpen}(w\, \tilde y + (1 - w)\, \bar p_h) \text{ (labelled)}, \qquad
    q = \mathrm{sharpen}(\tfrac12 (\bar p_1 + \bar p_2)) \text{ (unlabelled)}, \qquad \mathrm{sharpen}(p) \propto p^{1/T}

with means over two augmented views. Every row is mixed with another one, :math:`x' = l x + (1 - l) x_\pi`, q' alike,
:math:`l \sim \mathrm{Beta}(4, 4)`, at least 1/2, and

.. math::
    L_h = \overline{CE(q', p')} + \lambda_u \overline{\|q' - p'\|^2 / K} + \sum_k \tfrac1K \log \frac{1/K}{\bar p'_k}

over labelled, unlabelled and all rows. Ours differs in this: the learners are two heads on one backbone (as in
co-teaching); views are two dropout masks of the feature, and features are mixed, so that frozen features can be used; a
batch is divided as it comes instead of drawing as many images of either kind; schedules are shares of the run; and
:math:`\lambda_u` is 25 for every noise (the authors choose it by noise type and rate). Unknown: by the entropy of the mean
probabilities. :meth:`DivideMix.refined` gives labels and weights for another method.
"""

import warnings
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.labels.treatment import TreatedLabels
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.heads import Heads, mean_probabilities
from tllib_ext.modules.memory import SampleRows
from tllib_ext.modules.mixup import beta_shares
from tllib_ext.split import LabelSplit

__all__ = ["DivideMix", "DivideMixHparams", "clean_probability", "sharpen"]


@dataclass
class DivideMixHparams(Hparams):
    """Hyper-parameters of DivideMix."""

    warmup: float = hparam(0.1, "ours; code: 10 of 300 epochs", "share of the run with plain cross entropy")
    rounds: int = hparam(20, "ours; code: every epoch", "how often the labels are divided after that")
    lam_u: float = hparam(25.0, "code: 0, 25, 50 or 150 by noise; here one value", "weight of the unlabelled term")
    ramp: float = hparam(0.05, "code: 16 of 300 epochs", "share of the run over which that weight grows")
    threshold: float = hparam(0.5, "paper §4, code", "a label with a larger probability of being right is used")
    sharpening: float = hparam(0.5, "paper §4, code", "T, exponent 1/T of the targets")
    dropout: float = hparam(0.5, "ours; code: image augmentation", "of the feature, two masks are two views")
    temperature: float = hparam(0.05, "DANCE's head", "of the two cosine heads")
    unknown_rule: str = hparam("entropy", "DANCE, GLC", "entropy, confidence or target-model")
    unknown_threshold: Optional[float] = hparam(None, "customary", "share of log K (default 0.5), or least confidence (0.5)")

    def __post_init__(self) -> None:
        if not (0 <= self.warmup < 1 and 0 <= self.dropout < 1) or self.rounds < 1:
            raise UserError(f"warmup={self.warmup}, dropout={self.dropout}, rounds={self.rounds}: expected shares, and 1 or more")


def clean_probability(losses: np.ndarray) -> np.ndarray:
    """Probability of the component with the lower mean in a mixture of two Gaussians over losses, scaled to [0, 1].

    Examples::

        >>> clean_probability(np.array([0.0, 0.1, 0.2, 5.0, 5.1])).round(2).tolist()
        [1.0, 1.0, 1.0, 0.0, 0.0]
    """
    span = losses.max() - losses.min()
    if span == 0:
        return np.ones(len(losses))
    scaled = ((losses - losses.min()) / span)[:, None]
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # the code's ten iterations
        mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(scaled)
    return mixture.predict_proba(scaled)[:, mixture.means_.argmin()]


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """Rows :math:`p^{1/T}`, normalised."""
    return F.softmax(p.clamp(min=1e-12).log() / temperature, dim=1)


class DivideMix(Method):
    """Two heads; each treats what the other finds wrong as unlabelled."""

    Hparams = DivideMixHparams
    hparams: DivideMixHparams
    context: Context
    uses_target = False
    training_only = ("clean.",)

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[DivideMixHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.heads = Heads(self.features_dim, k, temperature=hp.temperature)
        self.clean = SampleRows(2)  # the probability of a right label, by each head's losses
        self.rule = EntropyRule(k, hp.unknown_rule, hp.unknown_threshold)
        self.threshold = self.rule.threshold
        self._first, self._rounds = 0, frozenset([0])

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        context.need("source_features", "source_labels")
        self._first = round(self.hparams.warmup * context.steps)
        self._rounds = frozenset(context.rounds(self.hparams.rounds, self._first))
        self.clean.resize(context.num_source)
        self.clean.rows.fill_(1.0)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        self.heads.normalise_rows()
        if step in self._rounds and step > 0:
            self._divide()
        f = self.backbone(source.x)
        logits = self.heads(f)
        ce = [F.cross_entropy(head.float(), source.labels, reduction="none") for head in logits]
        self.observe(source, (ce[0] + ce[1]) / 2, logits)
        if step < self._first:
            return {"loss": play.descend({"head 1": pooled_mean(ce[0]), "head 2": pooled_mean(ce[1])}, "G", "C") / 2}
        views = [F.dropout(f, self.hparams.dropout) for _ in range(2)]
        with torch.no_grad():
            probs = [[head.float().softmax(1) for head in self.heads(view)] for view in views]
            means = [(first + second) / 2 for first, second in zip(*probs)]
        clean = self.clean.rows[source.index]
        terms: Dict[str, Tensor] = {}
        grown = min(1.0, (step - self._first) / max(1e-9, self.hparams.ramp * self.steps))
        for number, head in enumerate(self.heads.heads):
            w = clean[:, 1 - number]  # co-divide: by the other head's losses
            q = self._targets(w, source.labels, means, number)
            mixed = self._mixed(head, torch.cat(views), torch.cat([q, q]), torch.cat([w, w]) > self.hparams.threshold)
            for name, value, weight in zip(("labelled", "unlabelled", "prior"), mixed, (1.0, self.hparams.lam_u * grown, 1.0)):
                terms[f"{name} {number + 1}"] = weight * value
        loss = play.descend(terms, "G", "C")
        return {"loss": loss / 2, "kept": (clean > self.hparams.threshold).float().mean()}

    def _targets(self, w: Tensor, labels: Tensor, means: List[Tensor], number: int) -> Tensor:
        given = F.one_hot(labels, means[0].shape[1]).to(w)
        labelled = w[:, None] * given + (1 - w[:, None]) * means[number]
        q = torch.where((w > self.hparams.threshold)[:, None], labelled, (means[0] + means[1]) / 2)
        return sharpen(q, self.hparams.sharpening)

    def _mixed(self, head: nn.Module, f: Tensor, q: Tensor, labelled: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """MixMatch's three terms."""
        share = beta_shares(4, device=f.device)
        share, other = torch.maximum(share, 1 - share), torch.randperm(len(f), device=f.device)
        log_p = F.log_softmax(head(share * f + (1 - share) * f[other]).float(), dim=1)
        q, p = share * q + (1 - share) * q[other], log_p.exp()
        prior = -(p.mean(0) * p.shape[1]).clamp(min=1e-12).log().mean()
        return pooled_mean(-(q * log_p).sum(1), labelled), pooled_mean((q - p).square().mean(1), ~labelled), prior

    @torch.no_grad()
    def _divide(self) -> None:
        """A new division of all labels, by the losses of both heads in evaluation mode."""
        f = self.context.whole("source").to(self.clean.rows)
        labels = torch.as_tensor(self.context.source_labels).to(f.device)
        losses = [F.cross_entropy(logits, labels, reduction="none").cpu().double().numpy() for logits in self.heads(f)]
        self.clean.rows.copy_(torch.from_numpy(np.stack([clean_probability(loss) for loss in losses], axis=1)))

    @torch.no_grad()
    def refined(self) -> TreatedLabels:
        r"""Labels and weights for another method: the largest entry of :math:`\bar w \tilde y + (1 - \bar w) \bar p`."""
        if self.context is None:
            raise UserError("there are no refined labels: train DivideMix first")
        p = mean_probabilities(self.heads(self.context.whole("source").to(self.clean.rows))).cpu().numpy()
        w = self.clean.rows.mean(1).cpu().numpy()[:, None]
        q = w * np.eye(p.shape[1])[self.context.source_labels] + (1 - w) * p
        return TreatedLabels(q.argmax(axis=1), q.max(axis=1), float(1 - q.max(axis=1).mean()))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        f = self.backbone(x)
        return self.rule.from_probs(mean_probabilities(self.heads(f)), x, f)
