"""What changes when a batch is spread over processes: means, counts and selections are over the global batch.

Every function is the plain one in a single process. Gradients are averaged over processes when a player steps, so a
term that is a global mean is returned as *world size x local sum / global count*: its average over processes is right.
"""

import atexit
import os
from contextlib import suppress
from datetime import timedelta
from typing import Dict, List, Optional, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["start", "leave", "world_size", "rank", "pooled_mean", "pooled_any", "gather_rows", "gather_objects", "mean_numbers"]

T = TypeVar("T")


def start(device: str) -> str:
    """Join the processes that ``torchrun`` started, if it did; returns the device of this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        return device
    cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if cuda:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=10))
    # gloo's threads must end before the interpreter does: else std::terminate aborts one process in a hundred.
    atexit.register(leave)
    return device


def leave() -> None:
    """Leave the processes that train together; nothing happens in a single process, or the second time."""
    if dist.is_available() and dist.is_initialized():
        with suppress(RuntimeError):  # a lost process has been reported
            dist.destroy_process_group()


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


def gather_objects(item: T) -> List[T]:
    """``item`` of every process, in the order of their ranks."""
    if world_size() == 1:
        return [item]
    items = [item] * world_size()
    dist.all_gather_object(items, item)
    return items


def mean_numbers(values: Dict[str, float]) -> Dict[str, float]:
    """Means over the processes of what each has under the same names."""
    everyone = gather_objects(values)
    return {name: sum(mine[name] for mine in everyone) / len(everyone) for name in values}
