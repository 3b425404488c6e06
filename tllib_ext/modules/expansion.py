r"""1 x 1 convolution, batch norm and ReLU as two matrix products, for the wide layers of a MobileNet on a CPU.

Such a layer widens x (a channels) to y = W x (c = 6 a channels), and then batch norm and ReLU6 go over the wide y again and
again: memory, not arithmetic, is what a step waits for. But the statistics of y follow from those of the narrow x, and so
does everything that batch norm's backward needs. With the centred input u = x - mean(x) and S = mean(u u'), exactly:

.. math::
    \mathrm{mean}(y) &= W\, \mathrm{mean}(x), \qquad \mathrm{var}(y) = \mathrm{diag}(W S W^\top) \\
    z &= V u + \beta, \qquad V = \mathrm{diag}(\gamma / \sigma)\, W, \qquad \sigma^2 = \mathrm{var}(y) + \epsilon

and for a gradient g of z over M places, with :math:`P = \sum g u^\top`:

.. math::
    \partial\beta &= \sum g, \qquad \partial\gamma = \mathrm{rowsum}(P \odot W) / \sigma \\
    \partial W &= \mathrm{diag}(\gamma / \sigma) (P - \mathrm{diag}(\partial\gamma / \sigma)\, W S) \\
    \partial x &= V^\top (g - \mathrm{mean}(g)) - \tfrac{1}{M} V^\top \mathrm{diag}(\partial\gamma / \sigma)\, W u
"""

from typing import Any, Tuple

import torch
from torch import Tensor, nn

from tllib_ext.modules.convolution import place_rows, plain_on_cpu

__all__ = ["fold_expansions"]

#: where it pays: this many places for each channel of x, or S costs more than the wide passes that it saves.
MIN_PLACES = 32


class _Expand(torch.autograd.Function):
    """(M, a) to (M, c), and the mean and variance of y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, top: float) -> Tuple[Tensor, ...]:
        mean, (places, a) = x.mean(0), x.shape
        u = x.new_ones(places, a + 1)  # the ones carry beta forward and its gradient back: no pass of their own
        torch.sub(x, mean, out=u[:, :a])
        ws = weight @ (u[:, :a].t() @ u[:, :a] / places)
        var = (ws * weight).sum(1).clamp_(min=0)  # rounding may leave a channel that never varies just below
        inverse = torch.rsqrt(var + eps)
        v = torch.cat([weight * (gamma * inverse).unsqueeze(1), beta.unsqueeze(1)], 1)
        out = (u @ v.t()).clamp_(0, top)
        ctx.save_for_backward(u, weight, ws, v, gamma, inverse, out)
        ctx.top = top
        mean = weight @ mean
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        u, weight, ws, v, gamma, inverse, out = ctx.saved_tensors
        g, a = torch.ops.aten.hardtanh_backward(grad, out, 0.0, ctx.top), weight.shape[1]
        p = g.t() @ u
        p, beta_grad = p[:, :a], p[:, a]
        gamma_grad = (p * weight).sum(1) * inverse
        share = (gamma_grad * inverse).unsqueeze(1)
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = g @ v[:, :a]
            both = torch.cat([share * weight, beta_grad.unsqueeze(1)], 1)
            x_grad.addmm_(u, both.t() @ v[:, :a], alpha=-1 / len(u))
        return x_grad, (p - share * ws) * (gamma * inverse).unsqueeze(1), gamma_grad, beta_grad, None, None


class _Expansion(nn.Sequential):
    """A (convolution, batch norm, ReLU) whose class was exchanged; the usual way wherever the products do not apply."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm, act = self
        if not _applies(conv, norm, x):
            return super().forward(x)
        n, a, height, width = x.shape
        top = 6.0 if isinstance(act, nn.ReLU6) else float("inf")
        rows = place_rows(x)
        out, mean, var = _Expand.apply(rows, conv.weight.view(-1, a), norm.weight, norm.bias, norm.eps, top)
        with torch.no_grad():
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(var * (len(rows) / (len(rows) - 1)), norm.momentum)
            norm.num_batches_tracked.add_(1)
        return out.view(n, height, width, -1).permute(0, 3, 1, 2)


def _applies(conv: nn.Module, norm: nn.Module, x: Tensor) -> bool:
    return norm.training and plain_on_cpu(x, conv.weight) and x.numel() >= MIN_PLACES * x.shape[1] ** 2


def _widens(block: nn.Module) -> bool:
    if not isinstance(block, nn.Sequential) or len(block) != 3 or type(block[2]) not in (nn.ReLU, nn.ReLU6):
        return False
    conv, norm = block[0], block[1]
    if not isinstance(conv, nn.Conv2d) or type(norm) is not nn.BatchNorm2d:
        return False
    plain = conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0) and conv.groups == 1
    usual = norm.affine and norm.track_running_stats and norm.momentum is not None
    return plain and usual and conv.bias is None and conv.out_channels >= 2 * conv.in_channels


def fold_expansions(network: nn.Module) -> int:
    """Let every (1 x 1 convolution that widens, batch norm, ReLU) of ``network`` work as above; returns how many.

    In place; the state keeps its names. Results change by rounding.

    Examples::

        >>> block = nn.Sequential(nn.Conv2d(4, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6())
        >>> fold_expansions(nn.Sequential(block)), list(block.state_dict())[:2]
        (1, ['0.weight', '1.weight'])
    """
    blocks = [block for block in network.modules() if _widens(block)]
    for block in blocks:
        block.__class__ = _Expansion
    return len(blocks)
