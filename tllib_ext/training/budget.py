"""What a step of a method costs: passes of the backbone, operations and memory, counted on the meta device."""

import weakref
from typing import NamedTuple, Optional, Sequence, Set

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tllib_ext.methods import METHODS
from tllib_ext.methods.context import Context
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.training.frozen import trained_part
from tllib_ext.training.memory import checkpoint_activations
from tllib_ext.training.meta import META, MetaPlayers, meta_batches
from tllib_ext.typing import Record
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.stages import ALL

__all__ = ["Budget", "Counter", "measure"]

#: length of the run and of both lists; the step that is measured, in the middle and not one of a method's re-estimation.
_STEPS, _IMAGES, _STEP = 5001, 600, 2509


class Budget(NamedTuple):
    """One step of a method.

    Args:
        forwards, backwards (float): passes of the backbone over one batch
        flops (float): floating-point operations, a multiplication and an addition counted as two
        peak (float): bytes of everything that is alive at the worst moment: weights, gradients, momentum, activations
        weights (float): bytes of weights and momentum, which are alive all the time
    """

    forwards: float
    backwards: float
    flops: float
    peak: float
    weights: float


class Counter(TorchDispatchMode):
    """Counts operations, and the bytes of tensors that are alive, inside the context.

    Examples::

        >>> with Counter() as counter:
        ...     a = torch.zeros(1000, device="meta"); b = a + 1; del a; c = b + 1
        ...     d = torch.zeros(2, 3) @ torch.zeros(3, 4)
        >>> counter.peak - d.nbytes, counter.flops
        (8072, 48)
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.flops = 0
        self._seen: Set[int] = set()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[object] = (), kwargs: Optional[Record] = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=made)
        self.add(*tree_leaves(made))
        return made

    def add(self, *values: object) -> None:
        """Count tensors, each storage once."""
        for value in values:
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in self._seen:
                storage = value.untyped_storage()
                self._seen.add(storage._cdata)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._remove, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.live)

    def _remove(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


class _Passes:
    """Counts the images that go through a network, and those whose gradients come back."""

    def __init__(self, network: nn.Module):
        self.forward = self.backward = 0
        network.register_forward_hook(self._after)

    def _after(self, network: nn.Module, inputs: Sequence[Tensor], output: Tensor) -> None:
        size = len(output)
        self.forward += size
        if output.requires_grad:
            output.register_hook(lambda grad: self._back(size))

    def _back(self, size: int) -> None:
        self.backward += size


def measure(
    method: str, arch: str = "resnet50", size: int = 224, batch: int = 36, checkpoint: bool = False,
    split: LabelSplit = PRESETS["Office31"], train_from: str = ALL,
) -> Budget:  # fmt: skip
    """Run a step from the middle of a run without data, in float32, and count.

    Args:
        method (str), arch (str): names of a method and a backbone
        size (int): side of the images
        batch (int): images per domain
        checkpoint (bool): with ``checkpoint_activations``
        split (LabelSplit): the label sets
        train_from (str): the stage from which the backbone is trained; what is below it is computed before the first step
    """
    cls = METHODS.get(method)
    if cls.training_free:
        return Budget(0.0, 0.0, 0.0, 0.0, 0.0)
    with META:
        backbone, shape = trained_part(build_backbone(arch, None), train_from, size)
    made = cls(backbone, split, cls.Hparams()).to(META).train()
    features = torch.randn(_IMAGES, made.features_dim, generator=torch.Generator().manual_seed(0))
    labels = np.arange(_IMAGES) % split.num_source
    made.prepare(
        Context(_STEPS, _IMAGES, _IMAGES, 0.2, 0, labels, source_features=features.clone, target_features=features.clone)
    )
    made.audit = LossHistory(_IMAGES, split.num_source, META)
    if checkpoint:
        checkpoint_activations(made.backbone)
    play, passes = MetaPlayers(made.players(), total_steps=_STEPS), _Passes(made.backbone)
    source, target = meta_batches(shape, batch)
    play.begin(_STEP)
    with Counter() as counter:
        momentum = [state["momentum_buffer"] for optimiser in play.optimisers.values() for state in optimiser.state.values()]
        counter.add(*made.parameters(), *made.buffers(), *momentum)
        weights = counter.live
        counter.add(source.x, target.x)
        made.update(source, target, _STEP, play)
    return Budget(passes.forward / batch, passes.backward / batch, counter.flops, counter.peak, weights)
