"""Faster convolutions on CPUs, by a matrix product instead of the library's own kernel."""

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GemmConv2d", "convolve", "convolve_back", "place_rows", "plain_on_cpu", "unclip_", "use_matrix_products"]

#: where the product wins: this many output channels or more, on maps of at most this many places.
MIN_CHANNELS, MAX_PLACES = 128, 256
#: the same of 1 x 1 convolutions, which are products themselves: no unfolding.
MAX_PLACES_1X1 = 256
#: bytes of unfolded input at a time; more would leave the cache.
CHUNK = 16 << 20


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Tuple[int, int], padding: Tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return convolve(x, weight, (stride, padding, (1, 1), 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        how = ctx.stride, ctx.padding, (1, 1), 1
        if _by_product(x, weight):
            return (*convolve_back(grad, x, weight, how, of_x, of_weight), None, None)
        grad_x = convolve_back(grad, x, weight, how, of_weight=False)[0] if of_x else None
        grad_w = _weight_gradient(x, grad, weight.shape, ctx.stride, ctx.padding) if of_weight else None
        return grad_x, grad_w, None, None


def place_rows(x: Tensor) -> Tensor:
    """:math:`(N, C, H, W)` as :math:`(NHW, C)`, a view where channels come last in memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _by_product(x: Tensor, weight: Tensor) -> bool:
    return weight.shape[2:] == (1, 1) and x.shape[2] * x.shape[3] <= MAX_PLACES_1X1


def convolve(x: Tensor, weight: Tensor, how: Any) -> Tensor:
    """A convolution by (stride, padding, dilation, groups); 1 x 1 on a small map, where nobody strides or pads, as a product."""
    if not _by_product(x, weight):
        return F.conv2d(x, weight, None, *how)
    n, _, height, width = x.shape
    return (place_rows(x) @ weight.flatten(1).t()).view(n, height, width, -1).permute(0, 3, 1, 2)


def convolve_back(
    grad: Tensor, x: Tensor, weight: Tensor, how: Any, of_x: bool = True, of_weight: bool = True
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradients of x and of the weight of ``convolve(x, weight, how)``."""
    if _by_product(x, weight):
        return _product_gradients(grad, x, weight, of_x, of_weight)
    stride, padding, dilation, groups = how
    wanted = (of_x, of_weight, False)
    return torch.ops.aten.convolution_backward(grad, x, weight, None, stride, padding, dilation, False, (0, 0), groups, wanted)[
        :2
    ]


def unclip_(grad: Tensor, z: Tensor, top: float) -> Tensor:
    """Back through the clip between 0 and ``top`` that z came from, in place: for gradients that nobody else has."""
    return torch.ops.aten.hardtanh_backward.grad_input(grad, z, 0.0, top, grad_input=grad)


def _product_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, of_x: bool, of_weight: bool
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    rows, grad_x, grad_w = place_rows(grad), None, None
    if of_x:
        grad_x = (rows @ weight.flatten(1)).view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
    if of_weight:
        grad_w = (rows.t() @ place_rows(x)).view_as(weight)
    return grad_x, grad_w


def plain_on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Whether layers may be replaced here: images channels-last (or rows) on a CPU, one full precision, no ``torch.compile``."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or x.device.type != "cpu":
        return False
    usual = x.dtype in (torch.float32, torch.float64) and x.dtype == weight.dtype and x.dim() in (2, 4)
    return usual and x.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)


def _weight_gradient(x: Tensor, grad: Tensor, shape: torch.Size, stride: Tuple[int, int], padding: Tuple[int, int]) -> Tensor:
    """Every place's gradient times the patch of the input under it, summed over the places."""
    (out, channels, high, wide), (above, left) = shape, padding
    x = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, above, above))
    grad = grad.permute(0, 2, 3, 1)
    size = channels * high * wide
    images = max(1, CHUNK // (grad.shape[1] * grad.shape[2] * size * x.element_size()))
    total = None
    for some, of_some in zip(x.split(images), grad.split(images)):
        patches = some.unfold(1, high, stride[0]).unfold(2, wide, stride[1]).permute(0, 1, 2, 4, 5, 3).reshape(-1, size)
        rows = of_some.reshape(-1, out).t()
        total = rows @ patches if total is None else torch.addmm(total, rows, patches)
    return total.view(out, high, wide, channels).permute(0, 3, 1, 2)


class GemmConv2d(nn.Conv2d):
    r"""A convolution with the same results, up to rounding, that is faster where the maps are small.

    The gradient of the weights is a product of two matrices, gradients by places and unfolded inputs by places; a 1 x 1
    convolution is all products. On a CPU without AVX-512, oneDNN's kernel for that gradient takes up to three times as long
    on the 4 x 4 and 8 x 8 maps at the end of a network. Anything else (other devices and layouts, autocast, compilation)
    goes the usual way.

    Examples::

        >>> plain = nn.Conv2d(64, 128, 3, padding=1, bias=False)
        >>> net = nn.Sequential(plain).to(memory_format=torch.channels_last); use_matrix_products(net)
        1
        >>> type(net[0]).__name__, list(net.state_dict())
        ('GemmConv2d', ['0.weight'])
    """

    def forward(self, x: Tensor) -> Tensor:
        return _Convolve.apply(x, self.weight, self.stride, self.padding) if self._gains_on(x) else super().forward(x)

    def _gains_on(self, x: Tensor) -> bool:
        if not plain_on_cpu(x, self.weight):
            return False
        if self.kernel_size == (1, 1):
            return _by_product(x, self.weight)
        places = (x.shape[-2] // self.stride[0]) * (x.shape[-1] // self.stride[1])
        return places <= MAX_PLACES and self.weight.requires_grad and torch.is_grad_enabled()


def use_matrix_products(network: nn.Module) -> int:
    """Let the convolutions of ``network`` that gain from it be :class:`GemmConv2d`, in place; returns how many."""
    changed = 0
    for layer in network.modules():
        if type(layer) is nn.Conv2d and _gains(layer):
            layer.__class__ = GemmConv2d  # the same state under the same names
            changed += 1
    return changed


def _gains(layer: nn.Conv2d) -> bool:
    if layer.groups > 1 or layer.dilation != (1, 1) or layer.bias is not None or layer.padding_mode != "zeros":
        return False
    if layer.kernel_size == (1, 1):
        return layer.stride == (1, 1) and layer.padding == (0, 0)
    return isinstance(layer.padding, tuple) and layer.out_channels >= MIN_CHANNELS
