r"""`Divergence Optimization for Noisy Universal Domain Adaptation (CVPR 2021) <https://arxiv.org/abs/2104.00246>`_.

A generator G and heads F1, F2 with three steps per iteration (section 3 of the paper)::

    A-1  min over G, F1, F2   L_s(D_s')                    SmallLossSelection
    A-2  min over G, F1, F2   L_t(D_t)                     TargetSeparation
    B    min over F1, F2      L_s(D_s') - mean crs(D_t)    SmallLossSelection, HeadMinimax.apart
    C    min over G           mean crs(D_t'), n times      HeadMinimax.together
    test: unknown iff crs > delta                          unknown_by_divergence

The losses are the modules of :mod:`tllib_ext.alignment.divergence`. The authors' code differs from the paper's text in
many constants; every difference is one of the hyper-parameters below. Preset ``code`` is the authors' released code,
preset ``paper`` the text taken literally. Preset ``default`` is the code but for three things: Step C is skipped where no
target sample looks known (the code steps on weight decay and momentum alone), the warm-up of a short run is shorter, and
the learning rate decays over S instead of S - 1 steps.
Two savings leave the result as it is: Step B has no graph through G (the code back-propagates through it and discards
the gradient), and B's target features serve the first repeat of C (same weights, same images).
"""

import math
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from tllib_ext.alignment.divergence import (
    HeadMinimax,
    SmallLossSelection,
    TargetSeparation,
    cross_divergence,
    unknown_by_divergence,
)
from tllib_ext.distributed import gather_rows, pooled_any
from tllib_ext.errors import UserError, closest
from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam, inverse_decay
from tllib_ext.methods.context import Context
from tllib_ext.methods.posterior import TargetPosterior
from tllib_ext.methods.selection import DropRate, check_drop_rate, estimate_source_labels
from tllib_ext.modules.batchnorm import BatchNormReplay
from tllib_ext.modules.heads import Heads, mean_probabilities
from tllib_ext.split import LabelSplit

__all__ = ["Divergence", "DivergenceHparams", "ABLATIONS", "CODE_PRESET", "PAPER_PRESET"]

#: What each row of the paper's ablation (Table 4) switches off; ``kl`` flips the sign of the entropy term.
ABLATIONS = ("no_select", "no_div", "no_crs", "no_ent", "no_sep", "no_minimax", "kl")

#: delta of the authors' configurations, 2 x `thr`: log K rounded down for 20 and 9 classes.
CODE_DELTA = {20: 2.98, 15: 2.70805020110221, 9: 2.18}

#: rate at which the border of ``delta=auto`` follows the batches.
FOLLOW = 0.1


@dataclass
class DivergenceHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    eta: float = hparam(0.05, "code: eta; paper: 1", "weight of every target term")
    lam: float = hparam(0.1, "paper §4, code", "weight of the symmetric KL divergence in the source loss")
    delta: Union[float, str] = hparam("code", "code: 2*thr = 2.98, 2.708, 2.18; paper: log K", "code, log_k, auto or a number")
    m: float = hparam(1.0, "paper §4; code: 2*margin", "half width of the dead zone")
    crs_clip: Optional[float] = hparam(2.0, "code; paper: none", "no push of crs beyond this distance from delta")
    crs_valid: Optional[float] = hparam(2.0, "code; paper: none", "crs term over samples with crs < this x delta")
    clamp: Optional[float] = hparam(2.0, "code; paper: none", "crs clamped at this x delta in Steps B and C")
    known_margin: float = hparam(1.0, "code: hard-coded 1; paper: m", "D_t' = samples with crs < delta - this")
    ent_mode: str = hparam("mean_dist", "code; paper: sum", "entropy of the mean distribution, or sum of the entropies")
    ent_weight: float = hparam(0.5, "code: works on half the scale; paper: 1", "weight of the entropy term beside crs")
    ent_eps: float = hparam(1e-5, "code; paper: 0", "epsilon inside the logarithm of mean_dist")
    warmup: Optional[int] = hparam(None, "code: 101; paper: 0", "steps of plain training first; default min(101, 4 % of the run)")
    decay_to_last: bool = hparam(False, "ours; code: true", "the learning rate decays over S - 1 steps, not over S")
    n: int = hparam(4, "paper §4, code", "repeats of Step C")
    drop_rate: DropRate = hparam(None, "code: the true noise rate", "share to drop; none = --rate, or auto")
    reselect: bool = hparam(True, "code; paper: the same D_s'", "select anew in Step B with the updated network")
    c_mean: str = hparam("selected", "code; paper: batch", "Step C averages over the selected samples or the whole batch")
    skip_empty: bool = hparam(True, "ours; code: false", "skip Step C when no target sample looks known")
    heads: int = hparam(2, "paper", "number of heads; divergences are means over pairs")
    head: str = hparam("cosine", "code", "cosine (temperature 0.05, unit rows) or linear")
    temperature: float = hparam(0.05, "code", "of the cosine heads")
    pred_head: str = hparam("first", "code", "class = argmax of the first head, or of the sum of the heads")
    ablate: str = hparam("", "paper Table 4", "comma-separated: " + ", ".join(ABLATIONS))

    def __post_init__(self) -> None:
        for name in self.ablations():
            if name not in ABLATIONS:
                raise UserError(f"unknown ablation {name!r}: {closest(name, ABLATIONS)}")
        for name, allowed in (("ent_mode", ("mean_dist", "sum")), ("c_mean", ("selected", "batch")),
                              ("head", ("cosine", "linear")), ("pred_head", ("first", "sum"))):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise UserError(f"hyper-parameter {name}={getattr(self, name)!r}: expected {' or '.join(allowed)}")
        if isinstance(self.delta, str) and self.delta not in ("code", "log_k", "auto"):
            raise UserError(f"hyper-parameter delta={self.delta!r}: expected code, log_k, auto or a number")
        check_drop_rate(self.drop_rate)
        if self.heads < 2:
            raise UserError(f"hyper-parameter heads={self.heads}: the divergence needs at least 2")
        if self.n < 0 or not self.temperature > 0:
            raise UserError(f"hyper-parameters n={self.n}, temperature={self.temperature}: expected 0 or more, and above 0")

    def ablations(self) -> List[str]:
        """The names in ``ablate``."""
        return [name for name in self.ablate.split(",") if name]


#: The authors' released code.
CODE_PRESET: Dict[str, object] = dict(warmup=101, skip_empty=False, decay_to_last=True)

#: The paper's text taken literally. Without the clips, the warm-up and with 20 times the weight it is unstable.
PAPER_PRESET: Dict[str, object] = dict(
    eta=1.0, delta="log_k", crs_clip=None, crs_valid=None, clamp=None, ent_mode="sum", ent_weight=1.0, ent_eps=0.0,
    warmup=0, reselect=False, c_mean="batch",
)  # fmt: skip


class Divergence(Method):
    """The paper's method."""

    Hparams = DivergenceHparams
    presets = {"default": {}, "code": CODE_PRESET, "paper": PAPER_PRESET}
    hparams: DivergenceHparams
    #: with ``delta=auto`` the borders of training and of the prediction: the share ``unknown_share`` of the crs is above
    border: Optional[Tensor]

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[DivergenceHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.heads = Heads(self.features_dim, k, hp.heads, hp.head, hp.temperature)
        named = {"code": CODE_DELTA.get(k, math.log(k)), "log_k": math.log(k), "auto": math.log(k)}
        self._delta = named[hp.delta] if isinstance(hp.delta, str) else hp.delta
        self.register_buffer("border", torch.full((2,), self._delta) if hp.delta == "auto" else None)
        self.unknown_share = 0.0
        off = set(hp.ablations())
        self.selects = "no_select" not in off
        self.plays = "no_minimax" not in off  #: whether there are Steps B and C
        given = 0.0 if hp.drop_rate in (None, "auto") else float(hp.drop_rate)
        self.selection = SmallLossSelection(given, 0.0 if "no_div" in off else hp.lam)
        crs_weight = 0.0 if off & {"no_crs", "no_sep"} else hp.eta
        ent_weight = 0.0 if off & {"no_ent", "no_sep"} else hp.eta * hp.ent_weight * (-1 if "kl" in off else 1)
        self.separation = TargetSeparation(
            self._delta, hp.m, hp.crs_clip, hp.crs_valid, hp.ent_mode, crs_weight, ent_weight, hp.ent_eps
        )
        self.minimax = HeadMinimax(self._delta, hp.known_margin, hp.clamp, over=hp.c_mean)
        #: of the warm-up: every source sample without the divergence, and the entropy of the target
        self.plain = SmallLossSelection(drop_rate=0.0, lam=0.0)
        self.entropy = TargetSeparation(
            self._delta, hp.m, entropy=hp.ent_mode, crs_weight=0.0, ent_weight=ent_weight, eps=hp.ent_eps
        )
        self.warmup = 0
        #: the estimate of the source labels, with ``drop_rate=auto``
        self.label_model: Optional[LabelModel] = None
        self.replay = BatchNormReplay(backbone)

    @property
    def delta(self) -> float:
        """The border between known and unknown in training."""
        return self._delta if self.border is None else float(self.border[0])

    @property
    def threshold(self) -> float:  # type: ignore[override]
        return self._delta if self.border is None else float(self.border[1])

    def lr_factor(self, step: int, steps: int) -> float:
        return inverse_decay(step / max(1, steps - self.hparams.decay_to_last))

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self.warmup = context.warmup(self.hparams.warmup)
        self._set_drop_rate(context)
        if not self.selects:
            self.selection.drop_rate = 0.0
        if self.border is not None:
            model = TargetPosterior(self.split.num_source).estimate(context)[1]
            if model is not None:
                self.unknown_share = model.share
                context.say(model.summary(self.split.source_classes))

    def _set_drop_rate(self, context: Context) -> None:
        if self.hparams.drop_rate is None:
            self.selection.drop_rate = context.rate
        elif self.hparams.drop_rate == "auto":
            self.label_model = estimate_source_labels(context, self.split.num_source)
            self.selection.drop_rate = self.label_model.rate
            context.say(self.label_model.summary(self.split.source_classes))

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        self.heads.normalise_rows()  # reference: once per iteration, before Step A only
        warm = step < self.warmup
        loss, kept = self.step_a1(source, play, warm)
        logits_t = self.step_a2(target, play, warm)
        if warm:
            return {"loss": loss}
        known = self.known(logits_t, target)  # D_t' of before Step A's move, kept for all repeats of Step C
        if self.plays:
            any_known = play.read_flag(pooled_any(known))
            f_t = self.step_b(source, target, kept, play)
            if not self.hparams.skip_empty or any_known():
                self.step_c(target, known, f_t, play)
        return {"loss": loss, "kept": kept.float().mean(), "known": known.float().mean(),
                "crs": cross_divergence(logits_t).mean()}  # fmt: skip

    def step_a1(self, source: Batch, play: Players, warm: bool) -> Tuple[Tensor, Tensor]:
        """G and the heads learn the source samples of small loss; returns that loss and the mask of D_s'."""
        return self.learn(source, source.labels, play, warm)

    def step_a2(self, target: Batch, play: Players, warm: bool) -> List[Tensor]:
        """G and the heads separate the target, and step; returns the heads' logits of before."""
        logits = self.heads(self.backbone(target.x))
        if not warm:
            self._follow(logits)
        play.descend((self.entropy if warm else self.separation).parts(logits), "G", "C")
        return [head.detach() for head in logits]

    def step_b(self, source: Batch, target: Batch, kept: Tensor, play: Players) -> Tensor:
        """The heads drift apart on the target, G fixed; returns the target's features, with G's graph."""
        self.replay.before()
        f_t = self.backbone(target.x)
        self.replay.after()
        with torch.no_grad():
            f_s = self.backbone(source.x)
        losses = self.selection.losses(self.heads(f_s), source.labels)
        if self.hparams.reselect:
            kept = self.selection.kept(losses)
        apart = self.minimax.apart(self.heads(f_t.detach()))
        play.descend({"source": self.selection.reduce(losses, kept), "apart": self.hparams.eta * apart}, "C")
        return f_t

    def step_c(self, target: Batch, known: Tensor, f_t: Tensor, play: Players) -> None:
        """G brings the heads together again on what looks known, n times; ``f_t`` of Step B serves the first."""
        for repeat in range(self.hparams.n):
            if repeat == 0:
                self.replay.apply()  # reference: forwards the target once more here; the statistics are the same
            else:
                f_t = self.backbone(target.x)
            together = self.minimax.together(self.heads(f_t), known)
            play.descend({"together": self.hparams.eta * together}, "G")

    def known(self, logits: List[Tensor], target: Batch) -> Tensor:
        """Mask of the target samples that look known, D_t'."""
        return self.minimax.known(logits)

    def learn(
        self, source: Batch, labels: Tensor, play: Players, warm: bool, weights: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """Back-propagate the (weighted) loss on the selected source samples, given the labels to learn."""
        selection = self.plain if warm else self.selection
        logits = self.heads(self.backbone(source.x))
        losses = selection.losses(logits, labels)
        kept = selection.kept(losses)
        loss = selection.reduce(losses if weights is None else weights * losses, kept)
        if self.audit is not None and labels is not source.labels:
            with torch.no_grad():  # the audit is of the given labels, whatever is learnt
                losses = selection.losses(logits, source.labels)
        self.observe(source, losses, logits)
        play.accumulate({"source": loss}, "G", "C")  # the source's graph goes before the target's comes: half the memory
        return loss.detach(), kept

    def _follow(self, logits: List[Tensor]) -> None:
        """With ``delta=auto`` the border follows the batch's quantile of crs."""
        if self.border is not None:
            crs = gather_rows(cross_divergence(logits))
            self.border[0].lerp_(torch.quantile(crs, 1 - self.unknown_share), FOLLOW)
            self.separation.delta = self.minimax.delta = self.delta

    @torch.no_grad()
    def refresh(self) -> None:
        if self.border is not None and self.context is not None:
            crs = cross_divergence(self.heads(self.context.whole("target").to(self.border.device)))
            self.border[1] = torch.quantile(crs, 1 - self.unknown_share)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        logits = self.heads(self.backbone(x))
        probs = mean_probabilities(logits[:1] if self.hparams.pred_head == "first" else logits)
        return Prediction(probs, cross_divergence(logits), unknown_by_divergence(logits, self.threshold))
