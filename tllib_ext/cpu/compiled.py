"""The layers that ``--compile`` exchanges on a CPU, with the same results up to rounding: batch norm with the clip after it
and MobileNetV2's blocks by compiled loops (:mod:`tllib_ext.cpu.kernels`), 3 x 3 convolutions with fewer multiplications
(:mod:`tllib_ext.cpu.winograd`), the layer on frozen features in one (:mod:`tllib_ext.cpu.bottleneck`)."""

import math
from typing import Any, Callable, List, Tuple

import torch
from torch import Tensor, nn

from tllib_ext.cpu.bottleneck import CompiledBottleneck, suits_bottleneck
from tllib_ext.cpu.convolution import convolve, convolve_back, plain_on_cpu
from tllib_ext.cpu.inverted import Block, is_layer, top_of, usual_norm
from tllib_ext.cpu.kernels import (
    VECTOR,
    norm_clip,
    norm_clip_back,
    norm_clip_depthwise,
    norm_clip_depthwise_back,
    norm_statistics,
)
from tllib_ext.cpu.winograd import WinogradConv2d, suits_winograd

__all__ = ["use_kernels"]

UNCLIPPED = -math.inf, math.inf


class _NormClip(torch.autograd.Function):
    """Batch norm in training and a clip."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, gamma: Tensor, beta: Tensor, norm: nn.BatchNorm2d, clip: Tuple[float, float]) -> Tensor:
        memo = norm_statistics(y, norm)
        ctx.save_for_backward(y, memo)
        ctx.eps, ctx.clip = norm.eps, clip
        return norm_clip(y, memo, *clip)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, memo = ctx.saved_tensors
        return (*norm_clip_back(_laid_out(grad), y, memo, ctx.eps, *ctx.clip, out=torch.empty_like(y)), None, None)


def _laid_out(x: Tensor) -> Tensor:
    # As a rule it is: but the gradient of a mean over places is not, nor what becomes of images with one channel.
    return x.contiguous(memory_format=torch.channels_last)


def _norm_clip(y: Tensor, norm: nn.BatchNorm2d, *clip: float) -> Tensor:
    return _NormClip.apply(y, norm.weight, norm.bias, norm, clip)


class _CompiledNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return _norm_clip(x, self, *UNCLIPPED) if _compiles(self, x) else super().forward(x)


class _CompiledLayer(nn.Sequential):
    """(convolution, batch norm, ReLU) with the last two in one."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm, act = self
        y = conv(x)
        return _norm_clip(y, norm, 0.0, top_of(act)) if _compiles(norm, y) else act(norm(y))


def _compiles(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    return norm.training and plain_on_cpu(x, norm.weight)


class _MobileBlock(torch.autograd.Function):
    """A whole block of MobileNetV2: x, widened: y1, its clipped norm convolved: y2, its clipped norm z2, narrowed: y3, its norm.

    Taken as a whole there is one function for autograd to keep instead of seven, a quarter of the time on small maps; and no
    gradient in it is anybody else's, so that the way back through a norm can overwrite it. The first block does not widen.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *args: Any) -> Tensor:
        (w1, _, _, w2, _, _, w3, _, _), (norm1, norm2, norm3), tops, how = args[:9], *args[9:]
        y1 = memo1 = None
        if w1 is None:
            y2 = _laid_out(convolve(x, w2, how))
        else:
            y1 = _laid_out(convolve(x, w1, POINTWISE))
            memo1 = norm_statistics(y1, norm1)
            y2 = norm_clip_depthwise(y1, memo1, 0.0, tops[0], w2, how[0][0])
        memo2 = norm_statistics(y2, norm2)
        z2 = norm_clip(y2, memo2, 0.0, tops[1])
        y3 = _laid_out(convolve(z2, w3, POINTWISE))
        memo3 = norm_statistics(y3, norm3)
        ctx.save_for_backward(x, w1, y1, memo1, w2, y2, memo2, z2, w3, y3, memo3)
        ctx.tops, ctx.how, ctx.eps = tops, how, [norm.eps if norm is not None else 0.0 for norm in (norm1, norm2, norm3)]
        return norm_clip(y3, memo3, *UNCLIPPED)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w1, y1, memo1, w2, y2, memo2, z2, w3, y3, memo3 = ctx.saved_tensors
        (top1, top2), (eps1, eps2, eps3), needed = ctx.tops, ctx.eps, ctx.needs_input_grad
        g, gamma3, beta3 = norm_clip_back(_laid_out(grad), y3, memo3, eps3, *UNCLIPPED, out=torch.empty_like(y3))
        g, of_w3 = convolve_back(g, z2, w3, POINTWISE, of_weight=needed[7])
        g = _laid_out(g)
        g, gamma2, beta2 = norm_clip_back(g, y2, memo2, eps2, 0.0, top2, out=g)
        of_w1 = gamma1 = beta1 = None
        if w1 is None:
            of_x, of_w2 = convolve_back(g, x, w2, ctx.how, needed[0], needed[4])
        else:
            g, gamma1, beta1, of_w2 = norm_clip_depthwise_back(g, y1, memo1, eps1, 0.0, top1, w2, ctx.how[0][0])
            of_x, of_w1 = convolve_back(g, x, w1, POINTWISE, needed[0], needed[1])
        return of_x, of_w1, gamma1, beta1, of_w2, gamma2, beta2, of_w3, gamma3, beta3, None, None, None


POINTWISE = (1, 1), (0, 0), (1, 1), 1


class _CompiledBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        *before, (depthwise, norm2, act2), narrow, norm3 = self
        wide, norm1, act1 = before[0] if before else (None, None, None)
        norms = norm1, norm2, norm3
        if not (all(norm is None or norm.training for norm in norms) and plain_on_cpu(x, narrow.weight)):
            return super().forward(x)
        params = []
        for conv, norm in zip((wide, depthwise, narrow), norms):
            params += (None, None, None) if norm is None else (conv.weight, norm.weight, norm.bias)
        how = depthwise.stride, depthwise.padding, depthwise.dilation, depthwise.groups
        return _MobileBlock.apply(x, *params, norms, (top_of(act1), top_of(act2)), how)


def _suits_block(module: nn.Module) -> bool:
    if not isinstance(module, Block):
        return False
    conv = module[-3][0]
    usual = conv.kernel_size == (3, 3) and conv.padding == conv.dilation == (1, 1) and conv.stride in ((1, 1), (2, 2))
    return usual and conv.in_channels % VECTOR == 0


#: in this order: a block is known by the layers in it, a layer by its batch norm.
EXCHANGES: List[Tuple[Callable[[nn.Module], bool], Any]] = [
    (_suits_block, _CompiledBlock),
    (is_layer, _CompiledLayer),
    (usual_norm, _CompiledNorm),
    (suits_winograd, WinogradConv2d),
    (suits_bottleneck, CompiledBottleneck),
]


def use_kernels(network: nn.Module) -> int:
    """Let every layer of ``network`` that gains from it be one of the above, in place; returns how many.

    The state keeps its names; results change by rounding.
    """
    exchanged = 0
    for suits, new in EXCHANGES:
        for module in network.modules():
            if suits(module):
                module.__class__ = new
                exchanged += 1
    return exchanged
