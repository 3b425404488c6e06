"""The trainable layer on frozen features on a CPU: linear, batch norm and ReLU in one function."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tllib_ext.cpu.convolution import plain_on_cpu
from tllib_ext.cpu.kernels import PANEL, linear_back, norm_clip, norm_clip_back, norm_statistics
from tllib_ext.modules.heads import FeatureBottleneck

__all__ = ["CompiledBottleneck", "suits_bottleneck"]

#: the outputs are computed in so many parts: several threads share a product with few rows better like this.
SLICES = 4


class _Bottleneck(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, norm: nn.BatchNorm1d) -> Tensor:
        y = _linear(x, weight, bias)
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
            of_weight = g.t() @ x if x.shape[1] % PANEL else linear_back(g, x)
        return of_x, of_weight, g.sum(0), of_gamma, of_beta, None


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if torch.get_num_threads() == 1:
        return F.linear(x, weight, bias)
    slices = weight.view(SLICES, len(weight) // SLICES, -1).transpose(1, 2)
    y = torch.baddbmm(bias.view(SLICES, 1, -1), x.expand(SLICES, *x.shape), slices)
    return y.transpose(0, 1).reshape(len(x), len(weight))


class CompiledBottleneck(FeatureBottleneck):
    """In training on a CPU; elsewhere the layers that it is made of."""

    def forward(self, x: Tensor) -> Tensor:
        linear, norm, _ = self
        if not (norm.training and x.dim() == 2 and plain_on_cpu(x, linear.weight)):
            return super().forward(x)
        return _Bottleneck.apply(x, linear.weight, linear.bias, norm.weight, norm.bias, norm)


def suits_bottleneck(module: nn.Module) -> bool:
    """Whether a module is a bottleneck with a batch norm of its own samples, of a width that can be cut."""
    if type(module) is not FeatureBottleneck or type(module[1]) is not nn.BatchNorm1d:
        return False
    return module.out_features % SLICES == 0
