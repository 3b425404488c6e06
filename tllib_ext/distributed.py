"""What changes when a batch is spread over processes: means, counts and selections are over the global batch.

Every function is the plain one in a single process. Gradients are averaged over processes when a player steps, so a
term that is a global mean is returned as *world size x local sum / global count*: its average over processes is right.
"""

import os
from datetime import timedelta
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from tllib_ext.alignment.divergence import num_kept, small_loss_mask
from tllib_ext.modules.global_norm import is_global

__all__ = [
    "start",
    "average_buffers",
    "world_size",
    "rank",
    "pooled_mean",
    "pooled_any",
    "pooled_small_loss",
    "gather_rows",
    "gather_objects",
    "mean_numbers",
]


def start(device: str) -> str:
    """Join the processes that ``torchrun`` started, if it did; returns the device of this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        return device
    cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if cuda:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=10))
    return device


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


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is; 0 writes the files."""
    return dist.get_rank() if world_size() > 1 else 0


def pooled_mean(values: Tensor, mask: Optional[Tensor] = None) -> Tensor:
    r"""Mean over the (masked) global batch; a zero that keeps the graph where the mask is empty.

    Shape:
        - values: :math:`(N, )`; mask: :math:`(N, )` bool
        - Outputs: scalar

    Examples::

        >>> pooled_mean(torch.tensor([1., 2., 9.]), torch.tensor([True, True, False])).item()
        1.5
        >>> pooled_mean(torch.tensor([1.]), torch.tensor([False])).item()
        0.0
    """
    world = world_size()
    if mask is None and world == 1:
        return values.mean()
    # where, not multiply: an infinite value outside the mask must not become NaN.
    total = values.sum() if mask is None else torch.where(mask, values, 0.0).sum()
    count = torch.tensor(len(values), device=values.device) if mask is None else mask.sum()
    if world > 1:
        dist.all_reduce(count)
        total = world * total  # processes average their gradients
    return total / count.clamp(min=1)


def pooled_any(mask: Tensor) -> Tensor:
    """Whether any sample of the global batch is in the mask, as a tensor (no wait for the device)."""
    count = mask.sum()
    if world_size() > 1:
        dist.all_reduce(count)
    return count > 0


def gather_rows(values: Tensor) -> Tensor:
    """The rows of all processes, in the order of their ranks; no gradient. Processes hold equal numbers of rows."""
    if world_size() == 1:
        return values.detach()
    parts = [torch.empty_like(values) for _ in range(world_size())]
    dist.all_gather(parts, values.detach().contiguous())
    return torch.cat(parts)


def gather_objects(item: Any) -> List[Any]:
    """``item`` of every process, in the order of their ranks."""
    if world_size() == 1:
        return [item]
    items: List[Any] = [None] * world_size()
    dist.all_gather_object(items, item)
    return items


def mean_numbers(values: Dict[str, float]) -> Dict[str, float]:
    """Means over the processes of what each has under the same names."""
    everyone = gather_objects(values)
    return {name: sum(mine[name] for mine in everyone) / len(everyone) for name in values}


def pooled_small_loss(values: Tensor, drop_rate: float) -> Tensor:
    """Mask of this process's samples that are among the small-loss part of the global batch."""
    everyone = gather_rows(values)
    mask = small_loss_mask(everyone, num_kept(len(everyone), drop_rate))
    return mask[rank() * len(values) : (rank() + 1) * len(values)]
