"""Batch norm over the batch of all processes: a run is the same however many share it."""

from typing import Any, List, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tllib_ext.distributed import world_size

__all__ = ["GlobalBatchNorm", "average_buffers", "is_global", "normalise_globally"]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tuple[Tensor, Tensor, Tensor]:
        wide = x.to(gamma.dtype)
        var, mean = torch.var_mean(wide, _all_but_channels(x), correction=0)
        parts = [torch.empty(2, len(mean), dtype=mean.dtype, device=x.device) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.stack([mean, var]))
        means, variances = torch.stack(parts).unbind(1)
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)  # within the processes and between them
        inverse = (var + eps).rsqrt()
        normal = (wide - _by_channel(mean, x)) * _by_channel(inverse, x)
        ctx.save_for_backward(normal, gamma, inverse)
        ctx.mark_non_differentiable(mean, var)
        return (normal * _by_channel(gamma, x) + _by_channel(beta, x)).to(x.dtype), mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *of_statistics: Any) -> Any:
        normal, gamma, inverse = ctx.saved_tensors
        g, dims = grad.to(gamma.dtype), _all_but_channels(grad)
        mine = torch.stack([(g * normal).sum(dims), g.sum(dims)])  # gradients of gamma and beta: averaged with all others later
        mean = mine.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size() * (grad.numel() // grad.shape[1])
        g = g - normal * _by_channel(mean[0], grad) - _by_channel(mean[1], grad)
        return (g * _by_channel(gamma * inverse, grad)).to(grad.dtype), mine[0], mine[1], None


def _all_but_channels(x: Tensor) -> List[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


class GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    r"""Batch norm whose mean and variance in training are those of the samples of all processes, each of which holds
    equally many; on a CPU, which :class:`torch.nn.SyncBatchNorm` refuses.

    .. math::
        \mu = \tfrac1P \textstyle\sum_p \mu_p, \quad
        \sigma^2 = \tfrac1P \textstyle\sum_p \left[ \sigma_p^2 + (\mu_p - \mu)^2 \right]

    Shape:
        - Inputs, Outputs: :math:`(N, C, ...)`
    """

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"expected samples by channels, got a tensor of shape {tuple(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        out, mean, var = _Normalise.apply(x, self.weight, self.bias, self.eps)
        with torch.no_grad():
            values = dist.get_world_size() * (x.numel() // x.shape[1])
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (values / (values - 1)), self.momentum)
        return out


def is_global(layer: nn.Module) -> bool:
    """Whether a layer normalises over the samples of all processes."""
    return isinstance(layer, (GlobalBatchNorm, nn.SyncBatchNorm))


def normalise_globally(module: nn.Module) -> int:
    """Let the batch norms of ``module`` normalise over the samples of all processes, in place; returns how many.

    The state keeps its names; so do the layers themselves, which others may hold.

    Examples::

        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)); normalise_globally(net), list(net.state_dict())[2]
        (1, '1.weight')
    """
    exchanged = 0
    for layer in module.modules():
        usual = type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d) and layer.affine and layer.track_running_stats
        if usual and layer.momentum is not None:
            if layer.weight.device.type == "cuda":
                layer.__class__, layer.process_group = nn.SyncBatchNorm, None
            else:
                layer.__class__ = GlobalBatchNorm
            exchanged += 1
    return exchanged


@torch.no_grad()
def average_buffers(module: torch.nn.Module) -> None:
    """Give every process the mean of all processes' batch-norm statistics, so that they stay one model; a layer that
    normalises over all of them has the same ones everywhere."""
    if world_size() == 1:
        return
    layers = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and not is_global(m)]
    buffers = [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]
    if not buffers:
        return
    flat = torch.cat([b.reshape(-1) for b in buffers])
    dist.all_reduce(flat)
    flat /= world_size()
    for b, part in zip(buffers, flat.split([b.numel() for b in buffers])):
        b.copy_(part.view_as(b))
