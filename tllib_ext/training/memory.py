"""Less memory for the activations of a backbone, paid for by computing them twice. No method needs to know of it."""

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Callable, ContextManager, Iterator, List, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from tllib_ext.errors import UserError

__all__ = ["checkpoint_activations", "accumulate", "blocks_of"]

Forward = Callable[..., Tensor]


def checkpoint_activations(network: nn.Module) -> None:
    """Keep only the inputs of a network's blocks for the backward pass, which computes the rest anew: equal results.

    The second pass leaves the running statistics of batch norms as the first one made them, and repeats its dropout.

    Args:
        network (torch.nn.Module): changed in place; the names of its state stay

    Examples::

        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU())
        >>> checkpoint_activations(net); net(torch.ones(4, 2, requires_grad=True)).grad_fn is not None
        True
    """
    for block in blocks_of(network):
        block.forward = partial(_checkpointed, block.forward, block)


def accumulate(network: nn.Module, parts: int) -> None:
    r"""Micro-batches: a network takes its batch in ``parts`` pieces, each of which goes through the backward pass alone.

    A first pass without a graph gives the features of the whole batch, from which a method computes its losses,
    selections and masks as ever. The backward pass takes one piece after the other: it computes the piece's activations
    anew and adds up its gradients. In memory are the activations of one piece.

    Args:
        network (torch.nn.Module): changed in place. No batch norm: its statistics are of a whole batch
        parts (int): how many pieces

    Examples::

        >>> net = nn.Linear(2, 3); x = torch.ones(5, 2, requires_grad=True); expected = net(x)
        >>> accumulate(net, 2); torch.equal(net(x), expected)
        True
    """
    if parts < 2:
        return
    norms = [name for name, layer in network.named_modules() if isinstance(layer, _BatchNorm)]
    if norms:
        raise UserError(
            f"accumulate={parts}: the backbone has {len(norms)} batch norms, whose statistics are of a whole batch; "
            "checkpoint_activations=True saves memory too, and gives equal results"
        )
    network.forward = partial(_in_parts, network.forward, network, parts)


def _checkpointed(forward: Forward, block: nn.Module, *inputs: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*inputs)
    passes = partial(_contexts, block)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=passes)


def _contexts(block: nn.Module) -> Tuple[ContextManager[None], ContextManager[None]]:
    return nullcontext(), _fixed_statistics(block)


def _in_parts(forward: Forward, network: nn.Module, parts: int, x: Tensor) -> Tensor:
    return torch.cat([_checkpointed(forward, network, part) for part in x.tensor_split(parts) if len(part)])


@contextmanager
def _fixed_statistics(block: nn.Module) -> Iterator[None]:
    """Batch norms normalise by the batch; with momentum 0 their running statistics stay."""
    layers = [layer for layer in block.modules() if isinstance(layer, _BatchNorm)]
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    try:
        for layer in layers:
            layer.momentum = 0.0
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked = layer.num_batches_tracked.clone()
        yield
    finally:  # PyTorch leaves the second pass by an exception as soon as it has what it needs
        for layer, (momentum, count) in zip(layers, before):
            layer.momentum, layer.num_batches_tracked = momentum, count


def blocks_of(network: nn.Module) -> List[nn.Module]:
    """The blocks that a network repeats: the elements of its innermost lists of modules of one class (the stages of a
    ResNet, the blocks of a transformer), else those of its longest list (MobileNetV2), else the network.

    Examples::

        >>> def stage(n): return nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(n)))
        >>> len(blocks_of(nn.Sequential(stage(3), nn.ReLU(), stage(4)))), len(blocks_of(nn.Linear(2, 2)))
        (7, 1)
    """
    lists = [m for m in network.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)) and len(m) > 1]
    alike = [m for m in lists if all(list(block.children()) for block in m) and len({type(block) for block in m}) == 1]
    inner = [m for m in alike if sum(other in alike for other in m.modules()) == 1]
    chosen = inner or sorted(lists, key=len)[-1:]
    return [block for m in chosen for block in m if list(block.children())] or [network]
