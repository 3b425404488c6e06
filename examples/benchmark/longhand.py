"""The yardstick: the authors' order of operations written out plainly, without code of this package.

Eight forwards through G per iteration (source, target | target, source | four times target); Step B's gradient goes
through G and is discarded; contiguous images, three plain SGD optimisers, probabilities and their logarithms.
"""

from typing import Any, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Longhand"]


class Longhand:
    """One network, two cosine heads and their three optimisers.

    Args:
        net (torch.nn.Module): G
        heads (list of tensor): the weights of F1, F2
        delta (float): border between known and unknown
        rate (float): share of each source batch that is dropped
        steps (int): length of the learning-rate schedule
        margin (float): target samples with crs < delta - margin look known
        lr (float): learning rate of the heads
    """

    def __init__(
        self, net: nn.Module, heads: List[Tensor], delta: float, rate: float, steps: int, margin: float = 1.0, lr: float = 0.01
    ):
        self.net, self.heads, self.delta, self.rate, self.steps = net, heads, delta, rate, steps
        self.margin, self.lr = margin, lr
        sgd: Any = dict(lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
        self.opt_g = torch.optim.SGD(net.parameters(), **sgd)
        self.opt_1, self.opt_2 = (torch.optim.SGD([w], **sgd) for w in heads)

    def probabilities(self, f: Tensor) -> Tuple[Tensor, Tensor]:
        """Class probabilities of both heads."""
        first, second = (F.softmax(F.linear(F.normalize(f, dim=1), w) / 0.05, dim=1) for w in self.heads)
        return first, second

    def source_loss(self, f: Tensor, y: Tensor) -> Tensor:
        """Mean loss of the samples of smallest loss."""
        p1, p2 = self.probabilities(f)
        rows = torch.arange(len(y), device=y.device)
        ce = -torch.log(p1[rows, y]) - torch.log(p2[rows, y])
        kl = (p1 * (torch.log(p1) - torch.log(p2))).sum(1) + (p2 * (torch.log(p2) - torch.log(p1))).sum(1)
        values = ce + 0.1 * kl
        return values[values.argsort()[: int((1 - self.rate) * len(y))]].mean()

    def crs(self, f: Tensor) -> Tensor:
        """Cross divergence of both heads."""
        p1, p2 = self.probabilities(f)
        return -(p1 * torch.log(p2)).sum(1) - (p2 * torch.log(p1)).sum(1)

    def step(self, x_s: Tensor, y: Tensor, x_t: Tensor, step: int) -> None:
        """One iteration after the warm-up."""
        rate = self.lr * (1 + 10 * step / self.steps) ** -0.75
        for optimiser, mult in ((self.opt_g, 0.1), (self.opt_1, 1.0), (self.opt_2, 1.0)):
            optimiser.param_groups[0]["lr"] = mult * rate
        with torch.no_grad():
            for w in self.heads:
                w /= w.norm(dim=1, keepdim=True)
        known = self.step_a(x_s, y, x_t)
        self.step_b(x_s, y, x_t)
        for _ in range(4):
            self.step_c(x_t, known)

    def step_a(self, x_s: Tensor, y: Tensor, x_t: Tensor) -> Tensor:
        """Train G, F1 and F2; returns which target samples look known."""
        loss = self.source_loss(self.net(x_s), y)
        f_t = self.net(x_t)
        crs = self.crs(f_t)
        p1, p2 = self.probabilities(f_t)
        mean = (p1 + p2) / 2
        ent = -(mean * torch.log(mean + 1e-5)).sum(1)
        valid = crs[crs < 2 * self.delta]
        if len(valid):
            loss = loss - 0.05 * (valid - self.delta).abs().clamp(1.0, 2.0).mean()
        loss = loss - 0.05 * (ent - self.delta / 2).abs().clamp(min=0.5).mean()
        self.descend(loss, self.opt_g, self.opt_1, self.opt_2)
        return (crs < self.delta - self.margin).detach()

    def step_b(self, x_s: Tensor, y: Tensor, x_t: Tensor) -> None:
        """Train F1 and F2 to disagree on the target; the gradient of G is not used."""
        crs = self.crs(self.net(x_t)).clamp(max=2 * self.delta)
        self.descend(self.source_loss(self.net(x_s), y) - 0.05 * crs.mean(), self.opt_1, self.opt_2)

    def step_c(self, x_t: Tensor, known: Tensor) -> None:
        """Train G to make the heads agree on target samples that look known."""
        crs = self.crs(self.net(x_t)).clamp(max=2 * self.delta)
        if known.any():
            self.descend(0.05 * crs[known].mean(), self.opt_g)

    @staticmethod
    def descend(loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
        """Zero the gradients, backward, step."""
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
