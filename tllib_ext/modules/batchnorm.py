"""Running statistics of batch norm: fix them, or replay an update without the forward pass that would make it."""

from functools import partial
from typing import List

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["BatchNormReplay", "fix_statistics"]


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
        self._module = module
        self._layers: List[_BatchNorm] = []
        self._update: List[Tensor] = []

    def _active(self) -> List[_BatchNorm]:
        # Listed anew before each pass: layers may be replaced by synchronised ones, or set to evaluation mode, in which
        # they make no update.
        layers = [layer for layer in self._module.modules() if isinstance(layer, _BatchNorm)]
        return [layer for layer in layers if layer.training and layer.track_running_stats and layer.momentum]

    @torch.no_grad()
    def before(self) -> None:
        """Call before the pass."""
        self._layers = self._active()
        self._update = [b * (1 - _momentum(layer)) for layer in self._layers for b in _statistics(layer)]

    @torch.no_grad()
    def after(self) -> None:
        """Call after the pass."""
        statistics = [b for layer in self._layers for b in _statistics(layer)]
        self._update = list(torch._foreach_sub(statistics, self._update)) if statistics else []

    @torch.no_grad()
    def apply(self) -> None:
        """Make the same update again."""
        for layer, *updates in zip(self._layers, self._update[::2], self._update[1::2]):
            for buffer, update in zip(_statistics(layer), updates):
                # .data: a graph that awaits its backward holds these buffers, but in training mode never reads them.
                buffer.data.mul_(1 - _momentum(layer)).add_(update)
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.add_(1)


def fix_statistics(network: nn.Module) -> None:
    """Batch norms normalise by their running statistics in training too, and leave them as they are; scale and shift are trained.

    Args:
        network (torch.nn.Module): changed in place; holds in it while it is a part of another module

    Examples::

        >>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)); fix_statistics(net)
        >>> whole = nn.Sequential(net, nn.BatchNorm1d(2)).train(); net.training, net[1].training, whole[1].training
        (True, False, True)
    """
    object.__setattr__(network, "train", partial(_train_except_norms, network))
    network.train(network.training)


def _train_except_norms(network: nn.Module, mode: bool = True) -> nn.Module:
    type(network).train(network, mode)
    for layer in network.modules():
        if isinstance(layer, _BatchNorm):
            layer.training = False
    return network


def _statistics(layer: _BatchNorm) -> List[Tensor]:
    assert layer.running_mean is not None and layer.running_var is not None
    return [layer.running_mean, layer.running_var]


def _momentum(layer: _BatchNorm) -> float:
    assert layer.momentum is not None
    return layer.momentum
