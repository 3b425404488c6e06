r"""3 x 3 convolutions on a CPU with less than half of the multiplications (`Lavin and Gray, CVPR 2016
<https://arxiv.org/abs/1509.09308>`_), up to rounding.

A tile of 2 x 2 outputs follows from the 4 x 4 inputs d under it and the filter w by

.. math::
    y = A^\top [ (G w G^\top) \odot (B^\top d B) ] A, \quad
    B^\top = \begin{pmatrix} 1&0&-1&0 \\ 0&1&1&0 \\ 0&-1&1&0 \\ 0&1&0&-1 \end{pmatrix}, \;
    G = \begin{pmatrix} 1&0&0 \\ .5&.5&.5 \\ .5&-.5&.5 \\ 0&0&1 \end{pmatrix}, \;
    A^\top = \begin{pmatrix} 1&1&1&0 \\ 0&1&-1&-1 \end{pmatrix}

Sixteen multiplications instead of 36; over all tiles and channels they are sixteen matrix products. The gradient of the
input is such a convolution too, by the filter turned round; for a gradient g of y that of the filter is

.. math::
    \partial w = G^\top [ \textstyle\sum_\text{tiles} (A g A^\top) \odot (B^\top d B) ] G
"""

from typing import Any, Optional, Sequence

import torch
from torch import Tensor, nn

from tllib_ext.cpu.convolution import plain_on_cpu
from tllib_ext.cpu.kernels import PANEL, filter_gradients, filter_tiles, gradient_tiles, input_tiles, winograd

__all__ = ["WinogradConv2d", "suits_winograd"]

#: from so many channels on, in and out; the additions for fewer cost more than the products save.
MIN_CHANNELS = 64
#: bytes of tiles at a time; more would leave the cache.
CHUNK = 8 << 20


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return winograd(x, filter_tiles(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)  # as a rule it is; that of a mean over places is not
        x_grad = winograd(grad, filter_tiles(weight.transpose(0, 1), turned=True)) if ctx.needs_input_grad[0] else None
        # The tiles of x are made again: kept from the forward they would take four times the memory of x.
        return x_grad, _filter_gradient(grad, x) if ctx.needs_input_grad[1] else None


def _filter_gradient(grad: Tensor, x: Tensor) -> Tensor:
    sums = None
    for some, of_some in zip(_some_images(x), _some_images(grad, like=x)):
        g, d = gradient_tiles(of_some).transpose(1, 2), input_tiles(some)
        sums = torch.bmm(g, d) if sums is None else sums.baddbmm_(g, d)
    return filter_gradients(sums)


def _some_images(x: Tensor, like: Optional[Tensor] = None) -> Sequence[Tensor]:
    """The images in parts whose tiles, four times their size, stay in the cache."""
    one = (x if like is None else like)[0]
    return x.split(max(1, CHUNK // (4 * one.numel() * one.element_size())))


class WinogradConv2d(nn.Conv2d):
    """A 3 x 3 convolution in training by the algebra above; in evaluation, and wherever else it does not fit, the usual one."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and plain_on_cpu(x, self.weight):
            return _Winograd.apply(x, self.weight)
        return super().forward(x)


def suits_winograd(layer: nn.Module) -> bool:
    """Whether a layer is a 3 x 3 convolution with stride 1 and padding 1 that is wide enough."""
    if not isinstance(layer, nn.Conv2d) or layer.bias is not None or layer.padding_mode != "zeros" or layer.groups > 1:
        return False
    if layer.kernel_size != (3, 3) or layer.padding != (1, 1) or layer.stride != (1, 1) or layer.dilation != (1, 1):
        return False
    channels = layer.in_channels, layer.out_channels
    return min(channels) >= MIN_CHANNELS and not any(number % PANEL for number in channels)
