"""Steps on PyTorch's ``meta`` device, whose tensors have shapes and no data: a GPU path checked without a GPU.

A method that waits for the host (``.item()``, ``.cpu()``, ``bool(tensor)``, a mask as an index) fails there, because there is
nothing to read; :class:`OnDevice` refuses tensors that were left on the CPU.
"""

from typing import Callable, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tllib_ext.methods.base import Batch
from tllib_ext.training.players import SGDPlayers
from tllib_ext.typing import Record

__all__ = ["META", "MetaPlayers", "OnDevice", "meta_batches"]

META = torch.device("meta")


class MetaPlayers(SGDPlayers):
    """Players whose losses have no values: every loss is finite, every flag is true."""

    def read_flag(self, flag: Tensor) -> Callable[[], bool]:
        return lambda: True

    def _check_finite(self, terms: Mapping[str, Tensor]) -> None:
        pass


class OnDevice(TorchDispatchMode):
    """A context in which an operation on a CPU tensor is an error; single numbers are kernel arguments and pass.

    Examples::

        >>> with OnDevice():
        ...     torch.ones(2, 3, device="meta") @ torch.ones(3, 1)
        Traceback (most recent call last):
        ...
        RuntimeError: aten.mm.default got a tensor of shape (3, 1) on the CPU
    """

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: Sequence[object] = (), kwargs: Optional[Record] = None
    ) -> object:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and value.device.type == "cpu" and value.dim():
                raise RuntimeError(f"{func} got a tensor of shape {tuple(value.shape)} on the CPU")
        return func(*args, **(kwargs or {}))


def meta_batches(shape: Sequence[int], batch: int) -> Tuple[Batch, Batch]:
    """A source and a target batch of inputs of ``shape`` without data."""
    x, index = torch.empty(batch, *shape, device=META), torch.empty(batch, dtype=torch.long, device=META)
    return Batch(x, index, index), Batch(x, None, index)
