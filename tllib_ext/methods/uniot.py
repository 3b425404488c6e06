r"""`Unified Optimal Transport Framework for Universal Domain Adaptation (UniOT, NeurIPS 2022)
<https://arxiv.org/abs/2210.17067>`_.

Unit features u, source prototypes P (the classifier's unit rows) and target cluster centres C, logits :math:`u P / T`.
*Common class detection*: unbalanced transport :math:`\pi` of a queue of target features to P; target image i is accepted
as class j where its largest entry exceeds :math:`1/n` and j receives at least its share :math:`1/K`. *Private class
discovery*: balanced transport of target images, their neighbours and some of the queue to C; each row Q is the other's
label:

.. math::
    L_{CCD} &= \overline{CE}(\arg\max_j \pi_{ij},\ u_i P / T) \text{ over accepted } i, \qquad
    \beta \leftarrow \mu \beta + (1 - \mu)\, \pi^T 1 \\
    L_{PCD} &= \tfrac12 \overline{CE}(Q_i, u_i) + \tfrac14 [\overline{CE}(Q_{n(i)}, u_i) + \overline{CE}(Q_i, u_{n(i)})] \\
    L &= \overline{CE}(y, u_s) + \lambda (L_{PCD} + L_{CCD}), \qquad \text{unknown iff } \max_j \pi_{ij} \le 1/n

*Adaptive filling* balances rows with a similarity above :math:`\gamma` and the others before each transport: by copies of
accepted rows, or by features moved half way to their farthest prototype. The code draws them, and the rows of the queue,
with replacement; here the whole queue takes part, and every candidate has its expected number of copies.

The decision needs the whole target. The authors transport all of it at test; here the same problem is solved once per
evaluation, and its column duals decide about each image by itself, with the same result. The authors'
code alternates scalings up to a tolerance, ours solves by Newton's method from the last step's duals. On frozen
features the run's bottleneck (linear, batch norm, ReLU) is the first layer of the projection.
"""

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.alignment.transport import Transport, sinkhorn, unbalanced_transport
from tllib_ext.distributed import gather_rows, pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.modules.heads import CosineHead, FeatureBottleneck
from tllib_ext.modules.memory import gather_with_grad
from tllib_ext.split import LabelSplit

__all__ = ["UniOT", "UniOTHparams"]


@dataclass
class UniOTHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    lam: float = hparam(0.1, "paper §5, code", "weight of both target terms")
    gamma: float = hparam(0.7, "paper §5, code", "cosine above which a row counts as positive in adaptive filling")
    mu: float = hparam(0.7, "paper §5, code; Office-Home, DomainNet: 1", "momentum of the column masses beta")
    clusters: int = hparam(50, "code: Office 50, Office-Home 150, VisDA 500, DomainNet 1000", "number of target clusters")
    queue: int = hparam(2000, "code: Office 2000, Office-Home 4000, VisDA 5000", "remembered target features")
    temperature: float = hparam(0.1, "paper §5, code", "T of both heads")
    hidden: Optional[int] = hparam(
        None,
        "code: 2048; frozen features: ours",
        "width of the projection's hidden layer, 0 = none; default: 0 over a bottleneck",
    )
    width: int = hparam(256, "code", "width of u")
    warmup: Optional[int] = hparam(None, "code: 101 of 10000", "steps without detection; default min(101, 4 % of the run)")

    def __post_init__(self) -> None:
        if min(self.clusters, self.queue, self.width) < 2:
            raise UserError(
                f"hyper-parameters clusters={self.clusters}, queue={self.queue}, width={self.width}: expected 2 or more"
            )


class UniOT(Method):
    """Unbalanced transport finds common classes, balanced transport clusters the rest."""

    Hparams = UniOTHparams
    hparams: UniOTHparams
    presets = {"default": {}, "code": {"warmup": 101, "hidden": 2048}}
    training_only = ("queue_", "beta", "start", "clusters.")
    threshold = 0.0
    eps, rho = 0.01, 0.5  # of the unbalanced transport: code
    queue_rows: Tensor
    queue_index: Tensor
    queue_next: Tensor
    beta: Tensor
    start: Tensor
    duals: Tensor
    offset: Tensor

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[UniOTHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        hidden = (0 if isinstance(backbone, FeatureBottleneck) else 2048) if hp.hidden is None else hp.hidden
        layers = [nn.Linear(self.features_dim, hidden), nn.ReLU()] if hidden else []
        self.projection = nn.Sequential(*layers, nn.Linear(hidden or self.features_dim, hp.width))
        self.prototypes = CosineHead(hp.width, k, hp.temperature)
        self.clusters = CosineHead(hp.width, hp.clusters, hp.temperature)
        self.register_buffer("queue_rows", torch.zeros(hp.queue, hp.width))
        self.register_buffer("queue_index", torch.full((hp.queue,), -1))
        self.register_buffer("queue_next", torch.tensor(0))
        self.register_buffer("beta", torch.full((k,), 1 / k, dtype=torch.float64))
        self.register_buffer("start", torch.zeros(k, dtype=torch.float64))  # duals of the last step
        self.register_buffer("duals", torch.zeros(k, dtype=torch.float64))  # of the whole target: the decision
        self.register_buffer("offset", torch.tensor(0.0, dtype=torch.float64))
        self.warmup = 0

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self.warmup = context.warmup(self.hparams.warmup)
        self._normalise()
        u = self._whole_target(context)
        rng = torch.Generator().manual_seed(context.seed)
        order = [torch.randperm(len(u), generator=rng) for _ in range(-(-self.hparams.queue // len(u)))]
        index = torch.cat(order)[: self.hparams.queue].to(u.device)
        self.queue_rows.copy_(u[index])
        self.queue_index.copy_(index)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp = self.hparams
        logits_s = self.prototypes.on_unit(self._unit(source.x)).float()
        ce = F.cross_entropy(logits_s, source.labels, reduction="none")
        self.observe(source, ce, [logits_s])
        u, index = gather_with_grad(self._unit(target.x)), gather_rows(target.index)  # of the global batch
        terms = {"source": pooled_mean(ce), "discovery": hp.lam * self._discover(u, index)}
        if step >= self.warmup:
            label, accepted = self._detect(u.detach())
            ccd = F.cross_entropy(self.prototypes.on_unit(u), label, reduction="none")
            terms["detection"] = hp.lam * torch.where(accepted, ccd, 0.0).sum() / accepted.sum().clamp(min=1)
        play.descend(terms, "G", "C")
        self._normalise()
        self._enqueue(u.detach(), index)
        return {"loss": terms["source"].detach(), **{name: value.detach() for name, value in terms.items() if name != "source"}}

    def _discover(self, u: Tensor, index: Tensor) -> Tensor:
        """Private class discovery: each image and its nearest neighbour are of one cluster."""
        # reference: the queue's columns of every image of the batch are left out for every anchor
        old = (u.detach() @ self.queue_rows.t()).masked_fill(torch.isin(self.queue_index, index), -1.0).max(1)
        now = (u @ u.t()).detach().fill_diagonal_(-1.0).max(1)
        neighbour = torch.where((old.values >= now.values)[:, None], self.queue_rows[old.indices], u[now.indices])
        drawn = torch.randint(len(self.queue_rows), (self.hparams.clusters,), device=u.device)
        filling = self.queue_rows[gather_rows(drawn)[: len(drawn)]]  # the first process's draw
        anchor, near = self.clusters.on_unit(u), self.clusters.on_unit(neighbour)
        q = sinkhorn(torch.cat([anchor, near, self.clusters.on_unit(filling)]).detach() * self.hparams.temperature)
        q_anchor, q_near = q[: len(u)], q[len(u) : 2 * len(u)]
        log_anchor, log_near = F.log_softmax(anchor, 1), F.log_softmax(near, 1)
        own = (q_anchor * log_anchor).sum(1)
        other = ((q_near * log_anchor).sum(1) + (q_anchor * log_near).sum(1)) / 2
        return -(own + other).mean() / 2

    @torch.no_grad()
    def _detect(self, u: Tensor) -> Tuple[Tensor, Tensor]:
        """Common class detection: the class of each image of the batch, and whether it is accepted."""
        found, label, accepted, masses = self._transport(torch.cat([self.queue_rows, u]))
        self.start.copy_(found.g)
        self.beta.copy_(self.hparams.mu * self.beta + (1 - self.hparams.mu) * masses)
        return label[-len(u) :], accepted[-len(u) :]

    def _transport(self, rows: Tensor) -> Tuple[Transport, Tensor, Tensor, Tensor]:
        """Adaptive filling, then the transport of the filling and ``rows``, in this order: plan, classes, accepted, masses."""
        rows, p, n = rows.double(), self.prototypes.weight.double(), len(rows)
        sim = rows @ p.t()
        missing = n - 2 * (sim.amax(1) > self.hparams.gamma).sum()  # positive rows, or -missing negative ones
        first = unbalanced_transport(sim, self.beta, self.eps, self.rho, start=self.start)
        accepted = self._accepted(first.plan, torch.ones_like(first.plan[:, 0]))[1]
        # Cosines of row + its farthest prototype, from those of its parts: no second product with all rows.
        least, farthest = sim.min(1)
        between = p @ p.t()
        length = (rows.square().sum(1) + 2 * least + between.diagonal()[farthest]).clamp(min=1e-24).sqrt()
        far = (sim + between[farthest]) / length[:, None]
        # Every candidate with its share, in place of the code's draws with replacement; no candidate, no filling.
        shares = torch.where(missing > 0, accepted.double() / accepted.sum().clamp(min=1), 1 / n)
        copies = torch.cat([missing.abs() * shares, torch.ones_like(shares)])
        filled = torch.cat([torch.where(missing > 0, sim, far), sim])
        found = unbalanced_transport(filled, self.beta, self.eps, self.rho, copies, first.g)
        return (found, *self._accepted(found.plan, copies), copies @ found.plan)

    @staticmethod
    def _accepted(plan: Tensor, copies: Tensor) -> Tuple[Tensor, Tensor]:
        best, label = plan.max(1)
        common = copies @ plan >= 1 / plan.shape[1]
        return label, (best > 1 / copies.sum()) & common[label]

    @torch.no_grad()
    def refresh(self) -> None:
        if self.context is not None:
            found = self._transport(self._whole_target(self.context))[0]
            self.duals.copy_(found.g)
            self.offset.copy_(found.offset)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        v = (self.duals + self._unit(x).double() @ self.prototypes.weight.double().t()) / self.eps
        score = self.rho / (self.rho + self.eps) * v.logsumexp(1) - v.max(1).values - self.offset
        return Prediction(v.softmax(1).float(), score.float(), score > self.threshold)

    @torch.no_grad()
    def _whole_target(self, context: Context) -> Tensor:
        return F.normalize(self.projection(context.whole("target").to(self.queue_rows)), dim=1)

    def _unit(self, x: Tensor) -> Tensor:
        return F.normalize(self.projection(self.backbone(x)).to(self.queue_rows), dim=1)

    def _normalise(self) -> None:
        self.prototypes.normalise_rows()
        self.clusters.normalise_rows()

    def _enqueue(self, u: Tensor, index: Tensor) -> None:
        place = (self.queue_next + torch.arange(len(u), device=u.device)) % len(self.queue_rows)
        self.queue_rows[place], self.queue_index[place] = u, index
        self.queue_next.copy_((self.queue_next + len(u)) % len(self.queue_rows))
