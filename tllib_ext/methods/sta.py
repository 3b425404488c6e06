r"""`Separate to Adapt: Open Set Domain Adaptation via Progressive Separation (CVPR 2019)
<https://github.com/thuml/Separate_to_Adapt>`_: STA.

Four stages, one after the other; f = G(x), z = bottleneck(f), C has K+1 outputs, the last of them "unknown"::

    1a  mean CE(C(z_s), y) + mean sum_k BCE(B_k(f_s), 1[y = k])                          binary classifiers of the source classes
    1b  the same + CE(S(f_t), known) on the target images of highest  max_k B_k(f_t)     S separates known from unknown,
                 + CE(S(f_t), unknown) on those of lowest                                a sixteenth of the batch each
    2a  mean CE(C(z_s), y) + 0.3 [mean -log D(z_s) + mean -w log(1 - D(z_t))] + 0.1 mean w H(p_t),   w = S_known(f_t), S fixed
    2b  the same + 0.3 CE(C(z_t), K) on the sixteenth of the target batch that S finds most unknown

    test: class = argmax over K+1; unknown iff it is K

D sits behind a gradient reversal. The authors' code (preset ``code``) ranks by the *sum* of B_k where the paper has
the maximum, and leaves the backbone untouched in stage 1, so that S is later used on features it never saw; the paper
trains it. The code also starts stage 2 with a fresh C, and puts the two images of stage 2b through C alone, whose batch
norm then sees two samples: here C is kept, and those images are part of the whole batch. Stages are shares of the run in
the code's proportions (500, 400, 1500, 400 iterations). ``rounds`` repeats all four, as the authors' read-me suggests.
"""

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import gather_rows, pooled_mean, rank
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam
from tllib_ext.methods.rules import predict_unknown_class
from tllib_ext.modules.adversarial import DomainDiscriminator, domain_loss, entropy, gradient_reverse, grl_coefficient
from tllib_ext.split import LabelSplit

__all__ = ["Sta", "StaHparams", "BinaryClassifiers", "extremes"]


class BinaryClassifiers(nn.Module):
    r"""K independent networks Linear, batch norm, LeakyReLU, Linear to one logit each, computed together.

    Shape:
        - Inputs: :math:`(N, F)`
        - Outputs: :math:`(N, K)` logits of "is class k"
    """

    def __init__(self, in_features: int, num_classes: int, hidden: int = 256):
        super().__init__()
        width = num_classes * hidden
        self.hidden = nn.Sequential(nn.Linear(in_features, width), nn.BatchNorm1d(width), nn.LeakyReLU(0.2))
        self.out = nn.Conv1d(width, num_classes, 1, groups=num_classes)  # class k sees only its own hidden units

    def forward(self, f: Tensor) -> Tensor:
        return self.out(self.hidden(f).unsqueeze(-1)).squeeze(-1)


def extremes(score: Tensor, share: float = 1 / 16) -> Tuple[Tensor, Tensor]:
    """Masks of this process's samples among the lowest and among the highest of the global batch (at least one each).

    Examples::

        >>> low, high = extremes(torch.tensor([.5, .1, .9, .3]), share=1 / 4)
        >>> low.tolist(), high.tolist()
        ([False, True, False, False], [False, False, True, False])
    """
    everyone = gather_rows(score)
    place = everyone.argsort(stable=True).argsort(stable=True)[rank() * len(score) : (rank() + 1) * len(score)]
    count = max(1, int(len(everyone) * share))
    return place < count, place >= len(everyone) - count


@dataclass
class StaHparams(Hparams):
    """Defaults are the paper's where the authors' code differs, on the DANCE family's learning rate."""

    score: str = hparam("max", "paper; code: sum", "of the binary classifiers' outputs, ranks target images in stage 1b")
    stage1_backbone: str = hparam("trained", "paper; code: frozen", "whether stage 1 trains the backbone")
    stage_1a: float = hparam(500 / 2800, "code: 500 iterations", "share of the run for stage 1a")
    stage_1b: float = hparam(400 / 2800, "code: 400 iterations", "share for stage 1b")
    stage_2b: float = hparam(400 / 2800, "code: 400 iterations", "share for stage 2b; stage 2a is the rest")
    rounds: int = hparam(1, "code", "how often the four stages are gone through")
    trade_off: float = hparam(0.3, "code", "weight of the adversarial loss")
    entropy_weight: float = hparam(0.1, "code", "weight of the target's weighted entropy")
    unknown_weight: float = hparam(0.3, "code", "weight of the unknown class's cross entropy in stage 2b")
    grl_gamma: float = hparam(3.8, "code: 10, max 10000, two counts in each of 1900 iterations", "speed of reversal in stage 2")
    bottleneck: int = hparam(256, "code", "width of z and of the hidden layers of B_k and S")
    hidden: int = hparam(1024, "code", "width of the discriminator's hidden layers")
    lr_mult: float = hparam(1.0, "DANCE: lr 0.01; code: 0.05 (1900 iterations)", "of the learning rates of G, C and D")
    separator_lr_mult: float = hparam(1.0, "DANCE: lr 0.01; code: 0.1", "of the learning rates of B and S")

    def __post_init__(self) -> None:
        for name, allowed in (("score", ("max", "sum")), ("stage1_backbone", ("trained", "frozen"))):
            if getattr(self, name) not in allowed:
                raise UserError(f"hyper-parameter {name}={getattr(self, name)!r}: expected {' or '.join(allowed)}")


class Sta(Method):
    """Separate to adapt."""

    Hparams = StaHparams
    hparams: StaHparams
    threshold = 0.0
    presets = {"default": {}, "code": dict(score="sum", stage1_backbone="frozen", lr_mult=0.05, separator_lr_mult=0.1)}

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[StaHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, width = self.hparams, self.features_dim
        self.bottleneck = nn.Linear(width, hp.bottleneck)
        outputs = nn.Linear(hp.bottleneck, split.num_source + 1)
        self.head = nn.Sequential(nn.BatchNorm1d(hp.bottleneck), nn.LeakyReLU(0.2), outputs)
        self.binary = BinaryClassifiers(width, split.num_source, hp.bottleneck)
        self.separator = nn.Sequential(nn.Linear(width, hp.bottleneck), nn.LeakyReLU(0.2), nn.Linear(hp.bottleneck, 2))
        self.discriminator = DomainDiscriminator(hp.bottleneck, hp.hidden, "batch_norm", slope=0.2)

    def players(self) -> Dict[str, List[ParamGroup]]:
        mult, separate = self.hparams.lr_mult, self.hparams.separator_lr_mult
        return {"G": self.backbone_groups(mult),
                "C": [{"params": [*self.bottleneck.parameters(), *self.head.parameters()], "lr_mult": mult}],
                "B": [{"params": self.binary.parameters(), "lr_mult": separate}],
                "S": [{"params": self.separator.parameters(), "lr_mult": separate}],
                "D": [{"params": self.discriminator.parameters(), "lr_mult": mult}]}  # fmt: skip

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp = self.hparams
        share = (step / self.steps * hp.rounds) % 1 + 1e-9  # of the round; the fractions' rounding must not delay a stage
        first = share < hp.stage_1a + hp.stage_1b
        with torch.set_grad_enabled(not (first and hp.stage1_backbone == "frozen")):
            f_s, f_t = self.backbone(source.x), self.backbone(target.x)
        z_s = self.bottleneck(f_s)
        logits_s = self.head(z_s)
        ce = F.cross_entropy(logits_s.float(), source.labels, reduction="none")
        self.observe(source, ce, [logits_s[:, : self.split.unknown]])
        terms = {"source": pooled_mean(ce)}
        log = {"loss": terms["source"].detach()}
        if first:
            self._separate(terms, source, f_s, f_t, ranking=share >= hp.stage_1a)
            movers = ["C", "B"] + ["S"] * ("separator" in terms) + ["G"] * (hp.stage1_backbone == "trained")
        else:
            progress = (share - hp.stage_1a - hp.stage_1b) / (1 - hp.stage_1a - hp.stage_1b)
            coefficient = grl_coefficient(progress, hp.grl_gamma)
            log["known"] = self._adapt(terms, z_s, f_t, coefficient, rejecting=share >= 1 - hp.stage_2b)
            movers = ["G", "C", "D"]
        play.descend(terms, *movers)
        return log

    def _separate(self, terms: Dict[str, Tensor], source: Batch, f_s: Tensor, f_t: Tensor, ranking: bool) -> None:
        """Stage 1: the binary classifiers learn the source; S learns from the images they are surest about."""
        k = self.split.num_source
        bce = F.binary_cross_entropy_with_logits(self.binary(f_s).float(), F.one_hot(source.labels, k).float(), reduction="none")
        terms["binary"] = pooled_mean(bce.sum(-1))
        if not ranking:
            return
        with torch.no_grad():
            b = torch.sigmoid(self.binary(f_t).float())
            lowest, highest = extremes(b.max(-1).values if self.hparams.score == "max" else b.sum(-1))
        known, unknown = self._separator_losses(f_t)
        terms["separator"] = pooled_mean(known, highest) + pooled_mean(unknown, lowest)

    def _adapt(self, terms: Dict[str, Tensor], z_s: Tensor, f_t: Tensor, coefficient: float, rejecting: bool) -> Tensor:
        """Stage 2: adversarial adaptation of the target images that S finds known."""
        hp = self.hparams
        z_t = self.bottleneck(f_t)
        logits_t = self.head(z_t)
        w = (-self._separator_losses(f_t)[0]).exp().detach()
        d_s = self.discriminator(gradient_reverse(z_s, coefficient))
        d_t = self.discriminator(gradient_reverse(z_t, coefficient))
        terms["adversarial"] = hp.trade_off * (pooled_mean(domain_loss(d_s, True)) + pooled_mean(w * domain_loss(d_t, False)))
        terms["entropy"] = hp.entropy_weight * pooled_mean(w * entropy(logits_t))
        if rejecting:
            to_unknown = -F.log_softmax(logits_t.float(), -1)[:, self.split.unknown]
            terms["unknown"] = hp.unknown_weight * pooled_mean(to_unknown, extremes(w)[0])
        return w.mean()

    def _separator_losses(self, f: Tensor) -> Tuple[Tensor, Tensor]:
        """-log S_known and -log S_unknown; S never moves the features."""
        log_p = F.log_softmax(self.separator(f.detach()).float(), -1)
        return -log_p[:, 0], -log_p[:, 1]

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        return predict_unknown_class(self.head(self.bottleneck(self.backbone(x))), self.split.unknown)
