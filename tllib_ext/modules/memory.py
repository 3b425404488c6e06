"""A memory of the target's features, the same one in every process."""

from typing import Any, Dict, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tllib_ext.distributed import gather_rows, rank, world_size

__all__ = ["SampleRows", "FeatureBank", "gather_with_grad"]


class SampleRows(nn.Module):
    """A row of numbers for every target image: a buffer, which may be loaded before :meth:`resize` was called.

    Args:
        width (int): length of a row; 0 leaves it to :meth:`resize`

    Examples::

        >>> memory = SampleRows(2); memory.resize(3); memory.rows.shape
        torch.Size([3, 2])
    """

    rows: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("rows", torch.zeros(0, width))

    def resize(self, num_samples: int, width: Optional[int] = None) -> None:
        """Zeros for ``num_samples`` images."""
        self.rows = self.rows.new_zeros(num_samples, self.rows.shape[1] if width is None else width)

    @torch.no_grad()
    def write(self, rows: Tensor, index: Tensor) -> None:
        """Overwrite the rows of the global batch; all processes end up with the same memory."""
        self.rows.index_copy_(0, gather_rows(index), gather_rows(rows.to(self.rows)))

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        saved = state_dict.get(f"{prefix}rows")
        if saved is not None and saved.ndim == 2 and self.rows.shape[1] in (0, saved.shape[1]):
            self.resize(len(saved), saved.shape[1])  # a trained model is loaded without knowing how many target images there were
        super()._load_from_state_dict(state_dict, prefix, *args)


class FeatureBank(SampleRows):
    r"""The last seen L2-normalised feature of every target image, zeros where an image was not seen yet.

    No gradient goes into the rows.

    Args:
        width (int): width D of a feature

    Examples::

        >>> bank = FeatureBank(2); bank.resize(3)
        >>> bank.write(torch.tensor([[3., 4.]]), torch.tensor([1]))
        >>> bank.rows
        tensor([[0.0000, 0.0000],
                [0.6000, 0.8000],
                [0.0000, 0.0000]])
    """

    def neighbours(self, f: Tensor, index: Tensor) -> Tensor:
        r"""Cosine similarity of each image of the batch to everything that may be its neighbour.

        The bank's rows of the (global) batch itself are outdated copies of the batch, and no image is its own neighbour:
        both get the least similarity, :math:`-1`.

        Inputs:
            - f (tensor): L2-normalised features, with gradients to both sides of the similarities inside the batch
            - index (tensor): which images they are of

        Shape:
            - f: :math:`(B, D)`, index: :math:`(B, )`
            - Outputs: :math:`(B, N + B')`: the bank's N rows, then the global batch of B' images
        """
        f = f.float()
        old = (f @ self.rows.t()).index_fill(1, gather_rows(index), -1.0)
        batch = f @ gather_with_grad(f).t()
        mine = torch.arange(len(f), device=f.device)
        own = torch.zeros_like(batch, dtype=torch.bool).index_put_((mine, rank() * len(f) + mine), torch.tensor(True))
        return torch.cat([old, batch.masked_fill(own, -1.0)], dim=1)

    def write(self, rows: Tensor, index: Tensor) -> None:
        """Overwrite the rows of the global batch by unit vectors; all processes end up with the same bank."""
        super().write(nn.functional.normalize(rows.float(), dim=1), index)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return gather_rows(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)  # every process's loss depends on these rows
        size = len(grad) // world_size()
        return grad[rank() * size : (rank() + 1) * size]


def gather_with_grad(values: Tensor) -> Tensor:
    """The rows of all processes; the gradient of every process's loss comes back to the row's owner."""
    return values if world_size() == 1 else _Gather.apply(values)
