"""Synchronised batch norm: statistics over the batches of all processes, on CPUs too."""

from typing import Any, List, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tllib_ext.distributed import world_size

__all__ = ["SyncBatchNormCPU", "convert_sync_batchnorm", "is_synced", "average_buffers"]


class _SyncBatchNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tuple[Tensor, Tensor, Tensor]:
        wide = x.to(gamma.dtype)
        var, mean = torch.var_mean(wide, _reduced_dims(x), correction=0)
        local = [torch.empty(2, len(mean), dtype=mean.dtype, device=x.device) for _ in range(dist.get_world_size())]
        dist.all_gather(local, torch.stack([mean, var]))
        means, variances = torch.stack(local).unbind(1)
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)  # within the processes and between them
        inverse = (var + eps).rsqrt()
        normal = (wide - _per_channel(mean, x)) * _per_channel(inverse, x)
        ctx.save_for_backward(normal, gamma, inverse)
        ctx.mark_non_differentiable(mean, var)
        return (normal * _per_channel(gamma, x) + _per_channel(beta, x)).to(x.dtype), mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *statistics: Any) -> Any:
        normal, gamma, inverse = ctx.saved_tensors
        g, dims = grad.to(gamma.dtype), _reduced_dims(grad)
        # Local gradients of gamma and beta: the optimiser step averages them over the processes with all others.
        local = torch.stack([(g * normal).sum(dims), g.sum(dims)])
        mean = local.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size() * (grad.numel() // grad.shape[1])
        g = g - normal * _per_channel(mean[0], grad) - _per_channel(mean[1], grad)
        return (g * _per_channel(gamma * inverse, grad)).to(grad.dtype), local[0], local[1], None


def _reduced_dims(x: Tensor) -> List[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


class SyncBatchNormCPU(_BatchNorm):
    r"""Batch norm whose mean and variance in training are those of the samples of all P processes. Every process must
    hold the same number of samples. :class:`torch.nn.SyncBatchNorm` does the same on GPUs only.

    .. math::
        \mu = \tfrac1P \textstyle\sum_p \mu_p, \quad
        \sigma^2 = \tfrac1P \textstyle\sum_p \left[ \sigma_p^2 + (\mu_p - \mu)^2 \right]

    Shape:
        - Inputs, Outputs: :math:`(N, C, ...)`
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"expected samples by channels, got a tensor of shape {tuple(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        out, mean, var = _SyncBatchNormFunction.apply(x, self.weight, self.bias, self.eps)
        with torch.no_grad():
            values = dist.get_world_size() * (x.numel() // x.shape[1])
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (values / (values - 1)), self.momentum)
        return out


def is_synced(layer: nn.Module) -> bool:
    """Whether a layer normalises over the samples of all processes."""
    return isinstance(layer, (SyncBatchNormCPU, nn.SyncBatchNorm))


def convert_sync_batchnorm(module: nn.Module) -> nn.Module:
    """Replace the batch-norm layers of ``module`` by synchronised ones, as
    :meth:`torch.nn.SyncBatchNorm.convert_sync_batchnorm` does, on CPUs too.

    Parameters and buffers are the same tensors under the same names. Layers without affine parameters, running
    statistics or a fixed momentum stay as they are.

    Args:
        module (torch.nn.Module): changed in place, unless it is a batch norm itself

    Returns:
        ``module``, or the layer that replaces it

    Examples::

        >>> net = convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        >>> type(net[1]).__name__, list(net.state_dict())[2]
        ('SyncBatchNormCPU', '1.weight')
    """
    for name, child in module.named_children():
        setattr(module, name, convert_sync_batchnorm(child))
    if not isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) or module.momentum is None:
        return module
    if not (module.affine and module.track_running_stats):
        return module
    kind = nn.SyncBatchNorm if module.weight.device.type == "cuda" else SyncBatchNormCPU
    synced = kind(module.num_features, module.eps, module.momentum)
    synced.weight, synced.bias = module.weight, module.bias
    synced.running_mean, synced.running_var = module.running_mean, module.running_var
    synced.num_batches_tracked = module.num_batches_tracked
    return synced.train(module.training)


@torch.no_grad()
def average_buffers(module: nn.Module) -> None:
    """Average the running statistics of the batch norms that are not synchronised over all processes."""
    if world_size() == 1:
        return
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and not is_synced(m)]
    buffers = [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]
    if not buffers:
        return
    flat = torch.cat([b.reshape(-1) for b in buffers])
    dist.all_reduce(flat)
    flat /= world_size()
    for b, mean in zip(buffers, flat.split([b.numel() for b in buffers])):
        b.copy_(mean.view_as(b))
