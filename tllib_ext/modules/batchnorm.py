"""Replay a batch-norm update without the forward pass that would make it."""

from typing import List

import torch
from torch import Tensor, nn

__all__ = ["BatchNormReplay", "check_batch"]


class BatchNormReplay:
    r"""Apply the running-statistics update of an earlier forward pass a second time.

    A batch-norm layer in training mode does :math:`r \leftarrow (1 - a) r + a b` with the batch's statistics b. Where
    the same batch would go through the same weights again, b is already known: :math:`a b = r' - (1 - a) r`, from the
    statistics before (r) and after (r') the pass that did happen.

    Args:
        module (torch.nn.Module): every batch-norm layer in it with running statistics and a fixed momentum

    Examples::

        >>> bn = nn.BatchNorm1d(2); replay = BatchNormReplay(bn); x = torch.randn(8, 2)
        >>> replay.before(); _ = bn(x); replay.after(); replay.apply()
        >>> other = nn.BatchNorm1d(2); _ = other(x); _ = other(x)
        >>> torch.allclose(bn.running_mean, other.running_mean)
        True
    """

    def __init__(self, module: nn.Module):
        layers = [
            layer
            for layer in module.modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats and layer.momentum
        ]
        self._layers = layers
        self._update: List[Tensor] = []

    def _active(self) -> List[nn.Module]:
        # A layer that somebody keeps in evaluation mode makes no update: replaying one would move it.
        return [layer for layer in self._layers if layer.training]

    @torch.no_grad()
    def before(self) -> None:
        """Call before the pass."""
        self._update = [b * (1 - layer.momentum) for layer in self._active() for b in self._buffers(layer)]

    @torch.no_grad()
    def after(self) -> None:
        """Call after the pass."""
        buffers = [b for layer in self._active() for b in self._buffers(layer)]
        self._update = torch._foreach_sub(buffers, self._update) if buffers else []

    @torch.no_grad()
    def apply(self) -> None:
        """Make the same update again."""
        for layer, mean, var in zip(self._active(), self._update[::2], self._update[1::2]):
            # .data: a graph that awaits its backward holds these buffers, but in training mode never reads them.
            layer.running_mean.data.mul_(1 - layer.momentum).add_(mean)
            layer.running_var.data.mul_(1 - layer.momentum).add_(var)
            layer.num_batches_tracked.add_(1)

    @staticmethod
    def _buffers(layer: nn.Module) -> List[Tensor]:
        return [layer.running_mean, layer.running_var]


def check_batch(y: Tensor) -> None:
    """Refuse less than two values per channel in training, in PyTorch's words."""
    if y.numel() <= y.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(y.shape)}")
