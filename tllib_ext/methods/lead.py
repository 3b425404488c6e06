r"""`LEAD: Learning Decomposition for Source-free Universal Domain Adaptation (CVPR 2024)
<https://arxiv.org/abs/2403.03421>`_, with its predecessors `GLC (CVPR 2023) <https://arxiv.org/abs/2303.07110>`_ and `GLC++
<https://arxiv.org/abs/2403.14410>`_ as options ``labels=glc`` and ``labels=glc++``.

Source-free: a first stage learns the source with smoothed labels; in the second stage the classifier W is fixed, and only
target images are learnt. At every round all of the target gets pseudo-labels q, one-hot or uniform, with weights w
(:mod:`tllib_ext.methods.pseudo_labels`). With z the embedding, :math:`e = z / \|z\|`, k and r the lengths of e inside and outside
of the span of W's rows, u = 1 for unknown, and :math:`\bar p` the mean output of the four nearest other target images:

.. math::
    L = \lambda \overline{w\, CE(q, p)} + \overline{w\, CE([1 - u, u], \mathrm{softmax}[k, r])} + \overline{CE(\bar p, p)}, \qquad
    \text{unknown iff } H(p) > 0.55 \log K

GLC has other pseudo-labels and no second term. GLC++ adds :math:`\overline{\sum_j e_i e_j - \sum_j e_i e_{n_j(i)}}`, over
four images of the batch that are too far to be of the same class, and over the four neighbours.

Both stages are in one run: the first half of the steps is the source's. The authors' code assigns the weight 1 of clear
cases to a copy, so that it has no effect; ``clear`` (preset ``paper``) does it. The source batch of the second stage is only
shown to the label audit, in evaluation mode.
"""

import math
from dataclasses import dataclass
from typing import Dict, List, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam, inverse_decay
from tllib_ext.methods.context import Context
from tllib_ext.methods.pseudo_labels import class_count, glc_labels, lead_labels
from tllib_ext.methods.rules import EntropyRule
from tllib_ext.modules.memory import FeatureBank, SampleRows, gather_with_grad
from tllib_ext.split import LabelSplit

__all__ = ["Lead", "LeadHparams"]

EPS = 1e-5  # inside the logarithms: code
SHARES = {"lead": (0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3), "glc": (0.25, 0.5, 1, 2, 3), "glc++": (0.25, 0.5, 1, 2, 3)}


@dataclass
class LeadHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    labels: str = hparam("lead", "paper", "pseudo-labels and losses: lead, glc or glc++")
    lam: float = hparam(0.3, "code: Office; VisDA 1, Office-Home 2 (GLC 1.5)", "weight of the pseudo-labels")
    clear: bool = hparam(False, "code in effect; paper: true", "weight 1 where LEAD's rule is sure")
    smoothing: float = hparam(0.1, "paper §5, code", "label smoothing of the source stage")
    source_share: float = hparam(0.5, "ours; code: 50 of 100 epochs", "share of the run that learns the source")
    target_lr: float = hparam(0.1, "code: 1e-3 after 1e-2", "learning rate of the target stage, times the run's")
    rounds: int = hparam(10, "ours; code: 50, one per epoch", "how often the pseudo-labels are made")
    recount: int = hparam(10, "GLC's code; LEAD's: every 10 of 50", "rounds after which the target's classes are counted again")
    neighbours: int = hparam(4, "paper §5, code", "target images in the mean output")
    contrast: float = hparam(1.0, "GLC++'s paper; its code: 0", "weight of GLC++'s term")
    width: int = hparam(256, "code", "width of the embedding")
    unknown_threshold: float = hparam(0.55, "code", "share of log K above which an image is unknown")

    def __post_init__(self) -> None:
        if self.labels not in SHARES:
            raise UserError(f"hyper-parameter labels={self.labels!r}: expected {', '.join(SHARES)}")
        if not 0 < self.source_share < 1:
            raise UserError(f"hyper-parameter source_share={self.source_share}: expected a share of the run between 0 and 1")
        if min(self.rounds, self.recount, self.neighbours) < 1:
            raise UserError(f"rounds={self.rounds}, recount={self.recount}, neighbours={self.neighbours}: expected 1 or more")


class Lead(Method):
    """A source model, then pseudo-labels of the target by feature decomposition."""

    Hparams = LeadHparams
    hparams: LeadHparams
    presets = {"default": {}, "code": {"rounds": 50}, "paper": {"rounds": 50, "clear": True}}
    source_free = True
    training_only = ("bank.", "probs.", "pseudo.", "basis", "share")
    context: Context
    basis: Tensor
    share: Tensor

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[LeadHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        if hp.labels == "lead" and hp.width <= k:
            raise UserError(f"hyper-parameter width={hp.width}: LEAD needs more than the {k} source classes")
        self.embed = nn.Sequential(nn.Linear(self.features_dim, hp.width), nn.BatchNorm1d(hp.width))
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(hp.width, k))
        self.bank, self.probs, self.pseudo = FeatureBank(hp.width), SampleRows(k), SampleRows(k + 2)
        self.register_buffer("basis", torch.zeros(hp.width, k))  # of the span of the classifier's rows
        self.register_buffer("share", torch.tensor(1.0))  # number of target classes / K
        self.rule = EntropyRule(k, threshold=hp.unknown_threshold)
        self.threshold = self.rule.threshold
        self._first = 1
        self._rounds: Dict[int, int] = {}

    def players(self) -> Dict[str, List[ParamGroup]]:
        return {"G": self.backbone_groups(), "E": [{"params": self.embed.parameters()}],
                "C": [{"params": self.head.parameters()}]}  # fmt: skip

    def lr_factor(self, step: int, steps: int) -> float:
        first = round(self.hparams.source_share * steps)
        if step < first:
            return inverse_decay(step / first)
        return self.hparams.target_lr * inverse_decay((step - first) / max(1, steps - first))

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        context.need("target_features")
        self._first = round(self.hparams.source_share * context.steps)
        rounds = context.rounds(self.hparams.rounds, self._first)
        self._rounds = {step: rounds.index(step) for step in rounds}
        for memory in (self.bank, self.probs, self.pseudo):
            memory.resize(context.num_target)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        if step < self._first:
            logits = self.head(self.embed(self.backbone(source.x))).float()
            self.observe(source, F.cross_entropy(logits, source.labels, reduction="none"), [logits])
            loss = F.cross_entropy(logits, source.labels, reduction="none", label_smoothing=self.hparams.smoothing)
            return {"loss": play.descend({"source": pooled_mean(loss)}, "G", "E", "C")}
        self._audit(source)
        if step in self._rounds:
            self._label_target(self._rounds[step])
        z = self.embed(self.backbone(target.x))
        e, p = F.normalize(z.to(self.basis), dim=1), self.head(z).to(self.basis).softmax(1)
        terms = self._losses(e, p, target.index)
        self.probs.write(p, target.index)
        self.bank.write(e, target.index)
        loss = play.descend(terms, "G", "E")
        return {"loss": loss, **{name: value.detach() for name, value in terms.items()}}

    def _losses(self, e: Tensor, p: Tensor, index: Tensor) -> Dict[str, Tensor]:
        hp, log_p = self.hparams, torch.log(p + EPS)
        q, w, unknown = self.pseudo.rows[index].split((p.shape[1], 1, 1), dim=1)
        near = (
            (e.detach().to(self.bank.rows) @ self.bank.rows.t())
            .topk(min(hp.neighbours + 1, len(self.bank.rows)), dim=1)
            .indices[:, 1:]
        )
        mean = self.probs.rows[near].mean(1) if near.shape[1] else p.detach()
        terms = {"labels": hp.lam * pooled_mean(-(w * q * log_p).sum(1)), "neighbours": pooled_mean(-(mean * log_p).sum(1))}
        if hp.labels == "lead":
            lengths = torch.stack(self._decompose(e), dim=1)
            side = torch.cat([1 - unknown, unknown], dim=1)
            terms["lengths"] = pooled_mean(-(w * side * torch.log(lengths.softmax(1) + EPS)).sum(1))
        elif hp.labels == "glc++":
            batch = gather_with_grad(e)
            order = (e @ batch.t()).sort(dim=1, descending=True).values[:, 1:]  # without the image itself
            skipped = torch.ceil(len(batch) / (p.shape[1] * self.share)) - 1
            place = torch.arange(order.shape[1], device=e.device)
            negative = ((place >= skipped) & (place < skipped + hp.neighbours)).to(order)
            positive = torch.einsum("bd,bnd->b", e, self.bank.rows[near].to(e))
            terms["contrast"] = hp.contrast * pooled_mean((order * negative).sum(1) - positive)
        return terms

    def _decompose(self, e: Tensor) -> List[Tensor]:
        """Lengths of e inside and outside of the classifier's span."""
        inside = (e @ self.basis).to(self.basis).square().sum(1)
        return [inside.clamp(min=1e-12).sqrt(), (1 - inside).clamp(min=1e-12).sqrt()]

    @torch.no_grad()
    def _label_target(self, number: int) -> None:
        """Pseudo-labels of the whole target and new memories, in evaluation mode."""
        hp, k = self.hparams, self.split.num_source
        z = self.over_whole("target", self.embed)
        e, p = F.normalize(z, dim=1), self.head(z).softmax(1)
        if number == 0:
            self.basis.copy_(torch.linalg.svd(self.head.weight.t(), full_matrices=False)[0])
        arrays = [value.cpu().double().numpy() for value in (e, p, self._decompose(e)[1], F.normalize(self.head.weight, dim=1))]
        if number % hp.recount == 0:
            self.share.fill_(class_count(arrays[0], k, SHARES[hp.labels], self.context.seed))
        if hp.labels == "lead":
            found = lead_labels(arrays[0], arrays[1], arrays[2], arrays[3], float(self.share), hp.clear)
        else:
            found = glc_labels(arrays[0], arrays[1], float(self.share), seed=self.context.seed)
        rows = np.concatenate([found.labels, found.weights[:, None], found.unknown[:, None]], axis=1)
        self.pseudo.rows.copy_(torch.from_numpy(rows))
        self.bank.rows.copy_(e)
        self.probs.rows.copy_(p)
        self.context.say(f"target: about {math.floor(k * float(self.share))} classes, {found.unknown.mean():.1%} look unknown")

    @torch.no_grad()
    def _audit(self, source: Batch) -> None:
        self.eval()
        logits = self.head(self.embed(self.backbone(source.x))).float()
        self.train()
        self.observe(source, F.cross_entropy(logits, source.labels, reduction="none"), [logits])

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        return self.rule(self.head(self.embed(self.backbone(x))))
