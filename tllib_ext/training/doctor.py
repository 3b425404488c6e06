"""Ten real steps of a method on a device, beside the same steps on the CPU: does it run, does it agree, how fast is it?"""

import math
import time
import traceback
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import List, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch, Method
from tllib_ext.methods.context import Context
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.split import LabelSplit
from tllib_ext.training.frozen import trained_part
from tllib_ext.training.memory import checkpoint_activations
from tllib_ext.training.players import SGDPlayers
from tllib_ext.training.precision import Precision
from tllib_ext.typing import Record
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.stages import ALL

__all__ = ["TOLERANCE", "Workload", "Examined", "examine"]

#: largest relative difference of a loss, or difference of a mean probability, that counts as rounding.
TOLERANCE = 0.01
_SPLIT = LabelSplit(("a", "b", "c"), ("p", "q"), ("u",))
_IMAGES = 60


@dataclass(frozen=True)
class Workload:
    """What is run: backbone with random weights (``small_cnn``: its own), side of the images, images per domain, steps, …

    and ``train_from``, the first stage of the backbone that is trained.
    """

    arch: str = "small_cnn"
    size: int = 32
    batch: int = 12
    steps: int = 10
    precision: str = "fp32"
    checkpoint: bool = False
    train_from: str = ALL


@dataclass
class _Trace:
    losses: List[float]
    probs: np.ndarray
    seconds: float
    memory: Optional[int]


@dataclass
class Examined:
    """One method: seconds per step, bytes at the worst moment (CUDA), largest difference from the reference, or the error."""

    method: str
    difference: Optional[float] = None
    seconds: Optional[float] = None
    memory: Optional[int] = None
    error: Optional[str] = None

    @property
    def agrees(self) -> bool:
        """Whether it ran and differs by rounding only."""
        return self.error is None and (self.difference is None or self.difference <= TOLERANCE)

    def record(self) -> Record:
        """For JSON."""
        return {**asdict(self), "agrees": self.agrees}


def examine(
    name: str, device: torch.device, workload: Workload, reference: Optional[torch.device] = None
) -> Examined:  # fmt: skip
    """Train ``name`` for a few steps on ``device``, and once more on ``reference`` for a comparison.

    Args:
        name (str): of a method
        device (torch.device): to examine
        workload (Workload): what is run
        reference (torch.device, optional): None compares nothing; a CPU is compared with itself without oneDNN

    Examples::

        >>> examine("source_only", torch.device("cpu"), Workload(batch=6, steps=2), torch.device("cpu")).agrees
        True
    """
    try:
        found = _train(name, device, workload)
        if reference is None:
            return Examined(name, None, found.seconds, found.memory)
        alone = device.type == reference.type == "cpu"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of Intel's GPUs here
            with torch.backends.mkldnn.flags(enabled=False) if alone else nullcontext():
                expected = _train(name, reference, workload)
    except Exception as error:  # whatever a device or a driver raises belongs into the report
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        return Examined(name, error=f"{type(error).__name__}: {text} ({where.filename.rpartition('/')[2]}:{where.lineno})")
    apart = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(found.losses, expected.losses)]
    difference = max([*apart, float(np.abs(found.probs - expected.probs).mean())])
    return Examined(name, difference, found.seconds, found.memory)


def _train(name: str, device: torch.device, workload: Workload) -> _Trace:
    torch.manual_seed(0)
    cls, g = METHODS.get(name), torch.Generator().manual_seed(1)
    weights = "default" if workload.arch == "small_cnn" else None
    network, shape = trained_part(build_backbone(workload.arch, weights), workload.train_from, workload.size)
    method = cls(network, _SPLIT, cls.Hparams()).to(device)
    for module in method.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # two devices draw different numbers
    patterns = 2 * torch.randn(_SPLIT.num_source, 3, 4, 4, generator=g)
    labels = torch.arange(_IMAGES) % _SPLIT.num_source
    x_s, x_t = (_inputs(patterns[labels], shape, g).to(device) for _ in range(2))
    method.eval()
    features = [torch.cat([_features(method, part) for part in x.split(12)]) for x in (x_s, x_t)]
    method.audit = LossHistory(_IMAGES, _SPLIT.num_source, device)
    method.prepare(
        Context(workload.steps, _IMAGES, _IMAGES, 0.2, 0, labels.numpy(), source_features=features[0].clone,
                target_features=features[1].clone)
    )  # fmt: skip
    if workload.checkpoint:
        checkpoint_activations(method.backbone)
    precision = Precision(workload.precision, device)
    play = SGDPlayers(method.train().players(), 0.01, workload.steps, scaler=precision.scaler, schedule=method.lr_factor)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    losses: List[Tensor] = []
    times = [_now(device)]
    labels = labels.to(device)
    for step in range(0 if cls.training_free else workload.steps):
        s, t = (torch.randint(_IMAGES, (workload.batch,), generator=g).to(device) for _ in range(2))
        play.begin(step)
        with precision.autocast():
            losses.append(method.update(Batch(x_s[s], labels[s], s), Batch(x_t[t], None, t), step, play)["loss"])
        if step == 1 or step == workload.steps - 1:  # the first two steps choose algorithms and allocate
            times.append(_now(device))
    play.check_pending()
    seconds = (times[-1] - times[-2]) / max(1, workload.steps - 2) if len(times) > 2 else times[-1] - times[0]
    probs = method.eval().predict(x_t[: workload.batch]).probs
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return _Trace([float(loss) for loss in losses], probs.float().cpu().numpy(), seconds, memory)


def _inputs(patterns: Tensor, shape: Sequence[int], g: torch.Generator) -> Tensor:
    """Noisy images of each pattern, or whatever else a network with frozen parts below it takes."""
    if len(shape) == 3 and shape[0] == patterns.shape[1]:
        large = nn.functional.interpolate(patterns, size=shape[1:])
    else:
        large = patterns.flatten(1).repeat(1, -(-math.prod(shape) // patterns[0].numel()))
        large = large[:, : math.prod(shape)].view(-1, *shape)
    return large + 0.5 * torch.randn(large.shape, generator=g)


@torch.no_grad()
def _features(method: Method, x: Tensor) -> Tensor:
    return method.backbone(x).float().cpu()


def _now(device: torch.device) -> float:
    if device.type in ("cuda", "mps"):
        (torch.cuda if device.type == "cuda" else torch.mps).synchronize()
    return time.perf_counter()
