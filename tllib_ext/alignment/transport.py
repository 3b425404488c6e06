r"""Entropic optimal transport between target samples (rows) and prototypes (columns), from similarities."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

__all__ = ["Transport", "partial_transport", "sinkhorn", "unbalanced_transport"]

#: largest difference of two costs in units of eps: twice its exponential is still a number in float64.
_FARTHEST = 300.0


@torch.no_grad()
def sinkhorn(sim: Tensor, eps: float = 0.05, rounds: int = 3) -> Tensor:
    r"""Balanced transport of rows to columns, both with uniform marginals, as a distribution over the columns of each row.

    Args:
        sim (tensor): similarities
        eps (float): weight of the entropy
        rounds (int): how often columns, then rows, are scaled to their marginals; the columns' hold only in the limit

    Shape:
        - sim: :math:`(N, C)`
        - Outputs: :math:`(N, C)`, float32, rows sum to one

    Examples::

        >>> sinkhorn(torch.tensor([[1., 0.], [1., 0.9]]), eps=0.1, rounds=50).round(decimals=2)
        tensor([[0.9900, 0.0100],
                [0.0100, 0.9900]])
    """
    log_q = sim.double() / eps
    for _ in range(rounds):
        log_q = log_q - log_q.logsumexp(0, keepdim=True)
        log_q = log_q - log_q.logsumexp(1, keepdim=True)
    return log_q.exp().float()


class Transport(NamedTuple):
    r"""A plan of unbalanced transport.

    Shape:
        - plan: :math:`(N, C)`, sums to one; each row is that of one copy
        - g: :math:`(C, )` dual variables of the columns; those of the rows follow from them
        - offset: scalar, see :func:`unbalanced_transport`
    """

    plan: Tensor
    g: Tensor
    offset: Tensor


@torch.no_grad()
def unbalanced_transport(
    sim: Tensor,
    beta: Tensor,
    eps: float = 0.01,
    rho: float = 0.5,
    copies: Optional[Tensor] = None,
    start: Optional[Tensor] = None,
    tolerance: float = 1e-6,
    rounds: int = 100,
) -> Transport:
    r"""Unbalanced transport with cost :math:`-S`, uniform row masses and column masses :math:`\beta`:

    .. math::
        \min_\pi \langle \pi, -S \rangle - \epsilon H(\pi) + \rho\, KL(\pi 1 \| a) + \rho\, KL(\pi^T 1 \| \beta)

    With duals f of the rows and g of the columns and :math:`\tau = \rho / (\rho + \epsilon)`, the solution satisfies
    :math:`f_i = \tau(\epsilon \log a_i - \epsilon \log \sum_j e^{(g_j + S_{ij})/\epsilon})` and the same for g. To
    alternate the two contracts by :math:`\tau^2` only. The columns are few, so f is eliminated and Newton's method solves
    for g, in the log domain; a step that does not reduce the residual is halved.

    With g known, a row's largest entry of the normalised plan times the number of rows, on which samples are accepted, is
    :math:`\exp(o + \max_j v_j - \tau \log \sum_j e^{v_j})` with :math:`v_j = (g_j + S_{ij}) / \epsilon` and ``offset`` o: a new
    row can be judged by itself.

    Args:
        sim (tensor): S
        beta (tensor): column masses, sum one
        eps (float), rho (float): weights of the entropy and of the marginals
        copies (tensor, optional): how many equal rows each row stands for, any number from 0
        start (tensor, optional): g of an earlier, similar problem
        tolerance (float): largest relative error of the columns' condition; a GPU takes all ``rounds``, to wait for nothing
        rounds (int): most Newton steps

    Shape:
        - sim: :math:`(N, C)`, beta and start: :math:`(C, )`, copies: :math:`(N, )`
    """
    tau = rho / (rho + eps)
    s = sim.double() / eps
    shift = s.amax(1)
    kernel = (s - shift[:, None]).exp().t().contiguous()  # (C, N): the products below are quicker than with (N, C)
    log_b = beta.double().clamp(min=1e-300).log()
    copies = torch.ones_like(shift) if copies is None else copies.double()
    log_copies, log_a = copies.clamp(min=1e-300).log(), -copies.sum().log()
    g = torch.zeros_like(log_b) if start is None else start.double() / eps  # f and g in units of eps
    identity = torch.ones_like(g).diag()
    centre, direction, size, last = g, torch.zeros_like(g), torch.ones_like(log_a), torch.full_like(log_a, torch.inf)
    for _ in range(rounds):
        weight = (g - g.max()).exp()
        total = weight @ kernel
        log_scale = tau * (log_a - shift - total.log() - g.max()) + shift + log_copies
        scale = (log_scale - log_scale.max()).exp()
        columns = kernel @ scale
        residual = g / tau - log_b + columns.log() + log_scale.max()
        error = residual.abs().max()
        if error.device.type == "cpu" and error < tolerance:
            break
        # The factors of rows and columns stay outside of the product: one pass over the N rows.
        both = (kernel * (scale / total)) @ kernel.t()
        jacobian = identity / tau - tau * both * weight / columns[:, None]
        better = error < last
        direction = torch.where(better, torch.linalg.solve_ex(jacobian, residual)[0], direction)
        centre, last = torch.where(better, g, centre), torch.minimum(last, error)
        size = torch.where(better, (2 * size).clamp(max=1), size / 2)
        g = centre - size * direction
    log_total = shift + ((g - g.max()).exp() @ kernel).log() + g.max()  # of exp(g_j + s_ij) over j
    f = tau * (log_a - log_total)
    log_mass = (f + log_total + log_copies).logsumexp(0)
    return Transport(((f - log_mass)[:, None] + g + s).exp(), g * eps, (tau - 1) * log_a - log_mass)


@torch.no_grad()
def partial_transport(cost: Tensor, a: Tensor, b: Tensor, mass: Tensor, eps: float = 0.01, rounds: int = 200) -> Tensor:
    r"""Entropic partial transport: a plan of the given mass whose marginals are at most a and b.

    .. math::
        \min_\pi \langle \pi, M \rangle - \epsilon H(\pi), \quad \pi 1 \le a, \quad \pi^T 1 \le b, \quad 1^T \pi 1 = m

    The plan is :math:`c\, u_i e^{-M_{ij}/\epsilon} v_j`; u, v (at most 1) and c are updated in turns
    (`Benamou et al. 2015 <https://arxiv.org/abs/1412.5154>`_), in float64. A cost more than 300 :math:`\epsilon` above the
    smallest counts as that much.

    Args:
        cost (tensor): M
        a (tensor), b (tensor), mass (tensor): largest marginals, and m, at most the sum of either
        eps (float): weight of the entropy
        rounds (int): number of updates, at least one

    Shape:
        - cost: :math:`(N, C)`, a: :math:`(N, )`, b: :math:`(C, )`, mass: scalar
        - Outputs: :math:`(N, C)`, float32

    Examples::

        >>> partial_transport(torch.tensor([[0., 1.], [1., 0.5]]), torch.ones(2) / 2, torch.ones(2) / 2, torch.tensor(0.5)).sum()
        tensor(0.5000)
    """
    # float64 holds the products of these factors: no logarithms, a quarter of the time. The smallest cost goes into c.
    kernel = ((cost.min() - cost).double() / eps).clamp(min=-_FARTHEST).exp()
    a, b, mass = a.double(), b.double(), mass.double()
    v, c = torch.ones_like(b), mass / kernel.sum()
    for _ in range(rounds):
        u = (a / (c * (kernel @ v))).clamp(max=1)
        by_column = u @ kernel
        v = (b / (c * by_column)).clamp(max=1)
        c = mass / (by_column @ v)
    return (c * u[:, None] * kernel * v).float()
