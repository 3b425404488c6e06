r"""The widening half of a MobileNet's block on a CPU: 1 x 1 convolution, batch norm, ReLU and depthwise convolution in one.

Such a block widens x (a channels) to y = W x (c = 6 a channels), and then batch norm and ReLU6 go over the wide y again and
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

from tllib_ext.cpu.convolution import convolve, convolve_back, place_rows, unclip_

__all__ = ["widen", "widening_pays"]

#: where it pays: this many places for each channel of x, or S costs more than the wide passes that it saves.
MIN_PLACES = 32


class _Widen(torch.autograd.Function):
    """x to the depthwise convolution of the clipped z, and the mean and variance of y."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, filters: Tensor, eps: float, top: float, how: Any
    ) -> Tuple[Tensor, ...]:
        rows, (n, a, height, width) = place_rows(x), x.shape
        mean, places = rows.mean(0), len(rows)
        u = x.new_ones(places, a + 1)  # the ones carry beta forward and its gradient back: no pass of their own
        torch.sub(rows, mean, out=u[:, :a])
        ws = weight @ (u[:, :a].t() @ u[:, :a] / places)
        var = (ws * weight).sum(1).clamp_(min=0)  # rounding may leave a channel that never varies just below
        inverse = torch.rsqrt(var + eps)
        v = torch.cat([weight * (gamma * inverse).unsqueeze(1), beta.unsqueeze(1)], 1)
        z = (u @ v.t()).clamp_(0, top).view(n, height, width, -1).permute(0, 3, 1, 2)
        ctx.save_for_backward(u, weight, ws, v, gamma, inverse, filters, z)
        ctx.top, ctx.how = top, how
        mean = weight @ mean
        ctx.mark_non_differentiable(mean, var)
        return convolve(z, filters, how), mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        u, weight, ws, v, gamma, inverse, filters, z = ctx.saved_tensors
        g, filters_grad = convolve_back(grad, z, filters, ctx.how, of_weight=ctx.needs_input_grad[4])
        g, a = place_rows(unclip_(g, z, ctx.top)), weight.shape[1]
        p = g.t() @ u
        p, beta_grad = p[:, :a], p[:, a]
        gamma_grad = (p * weight).sum(1) * inverse
        share = (gamma_grad * inverse).unsqueeze(1)
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = g @ v[:, :a]
            both = torch.cat([share * weight, beta_grad.unsqueeze(1)], 1)
            x_grad.addmm_(u, both.t() @ v[:, :a], alpha=-1 / len(u))
            x_grad = x_grad.view(*z.permute(0, 2, 3, 1).shape[:3], a).permute(0, 3, 1, 2)
        weight_grad = (p - share * ws) * (gamma * inverse).unsqueeze(1)
        return x_grad, weight_grad, gamma_grad, beta_grad, filters_grad, None, None, None


def widening_pays(x: Tensor) -> bool:
    """Whether there are so many places that :func:`widen` is faster than one layer after the other."""
    return x.numel() >= MIN_PLACES * x.shape[1] ** 2


def widen(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, top: float, depthwise: nn.Conv2d) -> Tensor:
    """``depthwise(norm(conv(x)).clamp(0, top))`` of channels-last images in training, up to rounding."""
    how = depthwise.stride, depthwise.padding, depthwise.dilation, depthwise.groups
    weight = conv.weight.flatten(1)
    out, mean, var = _Widen.apply(x, weight, norm.weight, norm.bias, depthwise.weight, norm.eps, top, how)
    places = x.numel() // x.shape[1]
    with torch.no_grad():
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(var * (places / (places - 1)), norm.momentum)
        norm.num_batches_tracked.add_(1)
    return out
