r"""`Universal Domain Adaptation (CVPR 2019) <https://github.com/thuml/Universal-Domain-Adaptation>`_:
the Universal Adaptation Network, UAN.

Samples of shared classes are uncertain in the source and certain in the target, and look like the other domain; each
sample's part in the adversarial game follows::

    w_s(x) = H(softmax(o / 10)) / log K - d'(x)         w_t(x) = d'(x) - H(softmax(o)) / log K        no gradient
    loss   = mean CE(x_s) + mean -v_s log D(z_s) + mean -v_t log(1 - D(z_t)) + mean -log d'(x_s) + mean -log(1 - d'(x_t))
    v      = w scaled to [0, 1] inside the batch, divided by its mean
    test:    unknown iff w_t(x) < w_0 = -0.5

D sits behind a gradient reversal; d', the second discriminator, reads z without gradient. The authors' code gives the
cross entropy a softmax *output*, so that a second softmax squashes its gradient (``double_softmax``, preset
``code``). Where all weights of a batch are equal, 0/0 in the code, all count the same here.
"""

import math
from dataclasses import dataclass
from typing import Dict, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.distributed import gather_rows, pooled_mean
from tllib_ext.methods.base import Batch, Hparams, Method, ParamGroup, Players, Prediction, hparam
from tllib_ext.modules.adversarial import DomainDiscriminator, domain_loss, entropy, gradient_reverse, grl_coefficient
from tllib_ext.split import LabelSplit

__all__ = ["Uan", "UanHparams", "scale_weights"]


def scale_weights(w: Tensor, eps: float = 1e-6) -> Tensor:
    r"""Scale to [0, 1] over the global batch and divide by the mean; equal weights become ones.

    Shape:
        - w: :math:`(N, )`
        - Outputs: :math:`(N, )`, without gradient

    Examples::

        >>> scale_weights(torch.tensor([-1., 0., 1.])).tolist(), scale_weights(torch.zeros(2)).tolist()
        ([0.0, 1.0, 2.0], [1.0, 1.0])
    """
    everyone = gather_rows(w)
    low, high = everyone.min(), everyone.max()
    if_equal = torch.ones_like(w)
    mean = (everyone - low).mean().clamp(min=1e-12)
    return torch.where(high - low > eps, (w.detach() - low) / mean, if_equal)


@dataclass
class UanHparams(Hparams):
    """Defaults are the authors' code without its double softmax, on the DANCE family's learning rate."""

    w_0: float = hparam(-0.5, "paper, code", "a target sample with w_t below it is unknown")
    source_temperature: float = hparam(10.0, "code", "of the softmax in w_s; 1 in w_t")
    trade_off: float = hparam(1.0, "paper, code", "weight of the adversarial loss")
    double_softmax: bool = hparam(False, "code: true", "cross entropy of softmax outputs taken for logits")
    grl_gamma: float = hparam(
        40.0, "code: 10, max 10000, two counts in each of 20000 iterations", "speed of the reversal's growth"
    )
    bottleneck: int = hparam(256, "code", "width of z")
    hidden: int = hparam(1024, "code", "width of the discriminators' hidden layers")
    lr_mult: float = hparam(1.0, "DANCE and code on OfficeHome: lr 0.01; code on Office, VisDA: 0.1", "of every learning rate")


class Uan(Method):
    """Universal adaptation network."""

    Hparams = UanHparams
    hparams: UanHparams
    threshold: float
    presets = {"default": {}, "code": dict(double_softmax=True, lr_mult=0.1)}

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[UanHparams] = None):
        super().__init__(backbone, split, hparams)
        hp = self.hparams
        self.bottleneck = nn.Linear(self.features_dim, hp.bottleneck)  # no batch norm, no ReLU
        self.head = nn.Linear(hp.bottleneck, split.num_source)
        self.discriminator = DomainDiscriminator(hp.bottleneck, hp.hidden, "dropout")
        self.similarity = DomainDiscriminator(hp.bottleneck, hp.hidden, "dropout")  # d', not adversarial
        self.threshold = -hp.w_0

    def players(self) -> Dict[str, List[ParamGroup]]:
        mult = self.hparams.lr_mult
        adversaries = [*self.discriminator.parameters(), *self.similarity.parameters()]
        return {"G": self.backbone_groups(mult),
                "C": [{"params": [*self.bottleneck.parameters(), *self.head.parameters()], "lr_mult": mult}],
                "D": [{"params": adversaries, "lr_mult": mult}]}  # fmt: skip

    def weight(self, logits: Tensor, d: Tensor, temperature: float = 1.0) -> Tensor:
        r"""The target's :math:`w_t = d' - H / \log K`; with the source's temperature, :math:`-w_s`.

        Shape:
            - logits: :math:`(N, K)`; d: :math:`(N, )` logits of d'
        """
        return (torch.sigmoid(d.float()) - entropy(logits.float() / temperature) / math.log(logits.shape[-1])).detach()

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp = self.hparams
        z_s = self.bottleneck(self.backbone(source.x))
        z_t = self.bottleneck(self.backbone(target.x))
        logits_s, logits_t = self.head(z_s), self.head(z_t)
        scores = logits_s.float().softmax(-1) if hp.double_softmax else logits_s.float()
        ce = F.cross_entropy(scores, source.labels, reduction="none")
        self.observe(source, ce, [logits_s])

        z, sizes = torch.cat([z_s, z_t]), (len(z_s), len(z_t))  # no batch norm in the discriminators: one pass is as good
        near_s, near_t = self.similarity(z.detach()).split(sizes)
        w_s, w_t = -self.weight(logits_s, near_s, hp.source_temperature), self.weight(logits_t, near_t)
        coefficient = grl_coefficient(step / self.steps, hp.grl_gamma)
        d_s, d_t = self.discriminator(gradient_reverse(z, coefficient)).split(sizes)
        adversarial_s = pooled_mean(scale_weights(w_s) * domain_loss(d_s, True))
        adversarial_t = pooled_mean(scale_weights(w_t) * domain_loss(d_t, False))
        terms = {
            "source": pooled_mean(ce),
            "adversarial": hp.trade_off * (adversarial_s + adversarial_t),
            "similarity": pooled_mean(domain_loss(near_s, True)) + pooled_mean(domain_loss(near_t, False)),
        }
        play.descend(terms, "G", "C", "D")
        log = {name: value.detach() for name, value in terms.items() if name != "source"}
        return {"loss": terms["source"].detach(), "w_t": w_t.mean(), **log}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        z = self.bottleneck(self.backbone(x))
        logits = self.head(z)
        score = -self.weight(logits, self.similarity(z))
        return Prediction(logits.float().softmax(-1), score, score > self.threshold)
