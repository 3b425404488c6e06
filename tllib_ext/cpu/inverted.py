"""The blocks of a MobileNetV2 on a CPU, several layers at a time: a gradient that never leaves them is worked on in place.

A block is *widen, batch norm, ReLU6, depthwise convolution, batch norm, ReLU6, narrow, batch norm*. Taken from each batch norm to
the convolution after it, the gradient of the clipped map belongs to nobody else: the mask of the ReLU overwrites it
instead of writing a new map.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tllib_ext.cpu.convolution import convolve, convolve_back, plain_on_cpu, unclip_
from tllib_ext.cpu.expansion import widen, widening_pays
from tllib_ext.modules.batchnorm import check_batch

__all__ = ["Block", "fold_blocks", "is_layer", "top_of", "usual_norm"]

aten = torch.ops.aten


class _NormClipConvolve(torch.autograd.Function):
    """Batch norm in training, a ReLU or ReLU6, and the convolution after it."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, norm: nn.BatchNorm2d, top: float, conv: nn.Conv2d
    ) -> Tensor:
        mean, var = norm.running_mean, norm.running_var
        z, mean, inverse = aten.native_batch_norm(y, gamma, beta, mean, var, True, norm.momentum, norm.eps)
        z.clamp_(0, top)
        ctx.save_for_backward(y, gamma, mean, inverse, z, weight)
        ctx.top, ctx.eps, ctx.how = top, norm.eps, (conv.stride, conv.padding, conv.dilation, conv.groups)
        return convolve(z, weight, ctx.how)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, gamma, mean, inverse, z, weight = ctx.saved_tensors
        g, weight_grad = convolve_back(grad, z, weight, ctx.how, of_weight=ctx.needs_input_grad[3])
        unclip_(g, z, ctx.top)
        grads = aten.native_batch_norm_backward(g, y, gamma, None, None, mean, inverse, True, ctx.eps, (True, True, True))
        return (*grads, weight_grad, None, None, None)


def _norm_clip_convolve(y: Tensor, norm: nn.BatchNorm2d, act: nn.Module, conv: nn.Conv2d) -> Tensor:
    check_batch(y)
    norm.num_batches_tracked.add_(1)
    return _NormClipConvolve.apply(y, norm.weight, norm.bias, conv.weight, norm, top_of(act), conv)


def top_of(act: nn.Module) -> float:
    """Where a ReLU6 or ReLU clips."""
    return 6.0 if isinstance(act, nn.ReLU6) else math.inf


class Block(nn.Sequential):
    """[Widening layer,] depthwise layer, narrowing convolution, batch norm: a Sequential whose class was exchanged."""

    def forward(self, x: Tensor) -> Tensor:
        *layers, narrow, last = self
        if not (all(layer[1].training for layer in layers) and plain_on_cpu(x, narrow.weight)):
            return super().forward(x)
        *before, (depthwise, norm, act) = layers
        if not before:
            y = depthwise(x)
        else:
            wide, wide_norm, wide_act = before[0]
            if widening_pays(x):
                y = widen(x, wide, wide_norm, top_of(wide_act), depthwise)
            else:
                y = _norm_clip_convolve(wide(x), wide_norm, wide_act, depthwise)
        return last(_norm_clip_convolve(y, norm, act, narrow))


def usual_norm(norm: nn.Module) -> bool:
    """Whether a layer is a batch norm of images as everybody has it."""
    return type(norm) is nn.BatchNorm2d and norm.affine and norm.track_running_stats and norm.momentum is not None


def _plain(conv: nn.Module) -> bool:
    return isinstance(conv, nn.Conv2d) and conv.bias is None and conv.padding_mode == "zeros" and isinstance(conv.padding, tuple)


def _pointwise(conv: nn.Module) -> bool:
    return _plain(conv) and conv.kernel_size == conv.stride == (1, 1) and conv.padding == (0, 0) and conv.groups == 1


def is_layer(layer: nn.Module) -> bool:
    """Whether a module is (convolution, batch norm, ReLU or ReLU6)."""
    if not isinstance(layer, nn.Sequential) or len(layer) != 3:
        return False
    return _plain(layer[0]) and usual_norm(layer[1]) and isinstance(layer[2], (nn.ReLU, nn.ReLU6))


def _is_block(block: nn.Module) -> bool:
    if type(block) is not nn.Sequential or len(block) not in (3, 4):
        return False
    *layers, narrow, last = block
    if not (all(map(is_layer, layers)) and _pointwise(narrow) and usual_norm(last)):
        return False
    *before, depthwise = (layer[0] for layer in layers)
    each_alone = depthwise.groups == depthwise.in_channels == depthwise.out_channels and depthwise.kernel_size != (1, 1)
    return each_alone and all(map(_pointwise, before))


def fold_blocks(network: nn.Module) -> int:
    """Let the blocks of a MobileNetV2 in ``network`` work as above; returns how many.

    In place; the state keeps its names. Results change by rounding.

    Examples::

        >>> from torchvision.models import mobilenet_v2
        >>> fold_blocks(mobilenet_v2())
        17
    """
    blocks = [block for block in network.modules() if _is_block(block)]
    for block in blocks:
        block.__class__ = Block
    return len(blocks)
