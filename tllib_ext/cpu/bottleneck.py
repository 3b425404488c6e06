"""The trainable layer on frozen features on a CPU: linear, batch norm and ReLU in one function, products in slices."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tllib_ext.cpu.convolution import plain_on_cpu
from tllib_ext.cpu.kernels import norm_clip, norm_clip_back, norm_statistics
from tllib_ext.modules.heads import FeatureBottleneck

__all__ = ["CompiledBottleneck", "suits_bottleneck"]

#: the outputs are computed in so many parts: a product with few rows is shared better between two processors like this.
SLICES = 4


class _Bottleneck(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, norm: nn.BatchNorm1d) -> Tensor:
        n, width = len(x), len(weight)
        slices = weight.view(SLICES, width // SLICES, -1).transpose(1, 2)
        y = torch.baddbmm(bias.view(SLICES, 1, -1), x.expand(SLICES, *x.shape), slices).transpose(0, 1).reshape(n, width)
        memo = norm_statistics(y, norm)
        ctx.save_for_backward(x, weight, y, memo)
        ctx.eps = norm.eps
        return norm_clip(y, memo, 0.0, math.inf)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, y, memo = ctx.saved_tensors
        g, of_gamma, of_beta = norm_clip_back(grad.contiguous(), y, memo, ctx.eps, 0.0, math.inf, out=torch.empty_like(y))
        of_x = g @ weight if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            slices = g.view(len(g), SLICES, -1).permute(1, 2, 0)
            of_weight = torch.bmm(slices, x.expand(SLICES, *x.shape)).view_as(weight)
        return of_x, of_weight, g.sum(0), of_gamma, of_beta, None


class CompiledBottleneck(FeatureBottleneck):
    """In training on a CPU; elsewhere the layers that it is made of."""

    def forward(self, x: Tensor) -> Tensor:
        linear, norm, _ = self
        if not (norm.training and x.dim() == 2 and plain_on_cpu(x, linear.weight)):
            return super().forward(x)
        return _Bottleneck.apply(x, linear.weight, linear.bias, norm.weight, norm.bias, norm)


def suits_bottleneck(module: nn.Module) -> bool:
    """Whether a module is a bottleneck with a batch norm, of a width that can be cut."""
    return type(module) is FeatureBottleneck and len(module) == 3 and module.out_features % SLICES == 0
