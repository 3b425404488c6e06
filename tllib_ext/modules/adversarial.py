r"""The pieces of adversarial adaptation: a gradient reversal, its schedule, a domain discriminator."""

import math
from typing import Any, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["gradient_reverse", "grl_coefficient", "QuickDropout", "perceptron", "DomainDiscriminator", "domain_loss", "entropy"]


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficient: float) -> Tensor:
        ctx.coefficient = coefficient
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
        return -ctx.coefficient * grad, None


def gradient_reverse(x: Tensor, coefficient: float = 1.0) -> Tensor:
    r"""`Gradient reversal (ICML 2015) <https://arxiv.org/abs/1409.7495>`_: the identity, whose gradient is
    multiplied by :math:`-\lambda`, so that one step trains a discriminator and the features against it.

    Args:
        coefficient (float): :math:`\lambda`

    Examples::

        >>> x = torch.ones(2, requires_grad=True)
        >>> gradient_reverse(x, 0.5).sum().backward(); x.grad
        tensor([-0.5000, -0.5000])
    """
    return _Reverse.apply(x, coefficient)


def grl_coefficient(progress: float, gamma: float = 10.0) -> float:
    r"""The customary growth of the reversal's coefficient from 0 towards 1:

    .. math::
        \lambda = \frac{2}{1 + e^{-\gamma p}} - 1

    Published schedules count iterations (or forward passes); with :math:`\gamma` the sum over their published run they
    become a function of the share p of the run, so that a shorter run goes through the same values: DANN's paper
    :math:`\gamma = 10`, tllib's script 20, ETN's and UAN's code 40.

    Args:
        progress (float): p, share of the run that is done
        gamma (float): speed

    Examples::

        >>> grl_coefficient(0.0), round(grl_coefficient(0.1), 4), round(grl_coefficient(1.0), 4)
        (0.0, 0.4621, 0.9999)
    """
    return 2.0 / (1.0 + math.exp(-gamma * progress)) - 1.0


class QuickDropout(nn.Dropout):
    """Dropout whose mask is a comparison of uniform numbers: on a CPU a third of the time of PyTorch's Bernoulli numbers.

    Examples::

        >>> sorted(set(QuickDropout(0.75)(torch.ones(99)).tolist()))
        [0.0, 4.0]
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.device.type != "cpu" or x.dtype != torch.float32:
            return super().forward(x)
        return x * torch.rand_like(x).ge_(self.p).div_(1 - self.p)


def perceptron(in_features: int, hidden: int, out_features: int, style: str, slope: float = 0.0) -> List[nn.Module]:
    """Three linear layers and what is between them, as described in :class:`DomainDiscriminator`.

    Examples::

        >>> [type(layer).__name__ for layer in perceptron(8, 16, 3, "dropout")]
        ['Linear', 'ReLU', 'QuickDropout', 'Linear', 'ReLU', 'QuickDropout', 'Linear']
    """
    layers: List[nn.Module] = []
    for width in (in_features, hidden):
        # easydl: ReLU then dropout; tllib: batch norm then ReLU
        act = nn.LeakyReLU(slope) if slope else nn.ReLU()
        layers += [
            nn.Linear(width, hidden),
            *([nn.BatchNorm1d(hidden), act] if style == "batch_norm" else [act, QuickDropout(0.5)]),
        ]
    return [*layers, nn.Linear(hidden, out_features)]


class DomainDiscriminator(nn.Sequential):
    r"""Three linear layers that separate source (high) from target (low); unlike tllib's it returns logits.

    Args:
        in_features (int): width of the feature
        hidden (int): width of both hidden layers
        style (str): ``"batch_norm"`` (tllib: batch norm, ReLU) or ``"dropout"`` (easydl: ReLU, dropout 0.5)
        slope (float): negative slope of the ReLU (0.2 in STA)

    Shape:
        - Inputs: :math:`(N, F)`
        - Outputs: :math:`(N, )` logits of "source"

    Examples::

        >>> DomainDiscriminator(8, 16, "dropout")(torch.randn(5, 8)).shape
        torch.Size([5])
    """

    def __init__(self, in_features: int, hidden: int = 1024, style: str = "batch_norm", slope: float = 0.0):
        super().__init__(*perceptron(in_features, hidden, 1, style, slope))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


def domain_loss(logits: Tensor, is_source: bool) -> Tensor:
    r"""Per-sample cross entropy of a discriminator's logits: :math:`-\log d` for source, :math:`-\log(1-d)` for target.

    Shape:
        - logits: :math:`(N, )`
        - Outputs: :math:`(N, )`, float32

    Examples::

        >>> round(domain_loss(torch.zeros(1), True).item(), 4), domain_loss(torch.tensor([200.]), False).item()
        (0.6931, 200.0)
    """
    return F.softplus(-logits.float() if is_source else logits.float())


def entropy(logits: Tensor, eps: float = 0.0) -> Tensor:
    r"""Per-sample entropy :math:`-\sum_k p_k \log(p_k + \epsilon)` of :math:`p = \mathrm{softmax}(o)`, from logits in float32.

    Examples::

        >>> [round(abs(h), 4) for h in entropy(torch.tensor([[0., 0.], [999., 0.]])).tolist()]
        [0.6931, 0.0]
    """
    log_p = F.log_softmax(logits.float(), dim=-1)
    p = log_p.exp()
    return -(p * (torch.log(p + eps) if eps else log_p)).sum(-1)
