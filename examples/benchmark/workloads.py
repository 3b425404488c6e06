"""One iteration of the paper's method on the same networks, heads and batches: the longhand loop, and this package."""

import copy
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.longhand import Longhand
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import CODE_DELTA, Divergence, DivergenceHparams
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.allocator import keep_freed_memory
from tllib_ext.training.compile import compile_network
from tllib_ext.training.fit import Meter, fit
from tllib_ext.training.players import SGDPlayers
from tllib_ext.training.precision import Precision
from tllib_ext.vision.models.backbones import build_backbone

__all__ = ["OPTIMISATIONS", "Workload", "LonghandStep", "PackageStep"]

#: what an ablation can switch off in :class:`PackageStep`
OPTIMISATIONS = ("kept memory", "channels-last")
CLASSES, STEPS, RATE = 20, 5001, 0.2
#: with this margin every random target image looks known, so that Step C, most of an iteration, is never skipped
MARGIN = -1e6


@dataclass
class Workload:
    """Random images (or features) and weights, which depend on these settings alone.

    Args:
        arch (str): a backbone's name, or ``features`` (2048 numbers, a bottleneck of 512)
        px (int): side of the images
        batch (int): images per domain
        device (str): where to train
        threads (int): PyTorch threads, 0 for its default
        double (bool): train in float64, where rounding differences are negligible
    """

    arch: str
    px: int = 128
    batch: int = 12
    device: str = "cpu"
    threads: int = 0
    double: bool = False

    def network(self) -> nn.Module:
        """G with random weights; sets the number of threads too."""
        if self.threads:
            torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        net = FeatureBottleneck(2048, 512) if self.arch == "features" else build_backbone(self.arch, None)
        return net.double() if self.double else net

    def batches(self) -> List[Tuple[Tensor, Tensor, Tensor]]:
        """Two batches of source images, labels, target images."""
        g = torch.Generator().manual_seed(1)
        shape = (self.batch, 2048) if self.arch == "features" else (self.batch, 3, self.px, self.px)
        dtype = torch.float64 if self.double else torch.float32
        made = []
        for _ in range(2):
            x_s, x_t = torch.randn(shape, generator=g).to(dtype), torch.randn(shape, generator=g).to(dtype)
            made.append((x_s, torch.randint(CLASSES, (self.batch,), generator=g), x_t))
        return made

    def heads(self, net: nn.Module, batches: List[Tuple[Tensor, Tensor, Tensor]]) -> List[Tensor]:
        """Two heads that nearly agree and are confident on some target images, as after some training."""
        with torch.no_grad():
            f = F.normalize(torch.cat([copy.deepcopy(net).train()(x_t) for _, _, x_t in batches]), dim=1)
            rows = F.normalize((f - f.mean(0))[torch.arange(CLASSES) * len(f) // CLASSES], dim=1)
            g = torch.Generator().manual_seed(2)
            return [F.normalize(rows + 0.003 * torch.randn(rows.shape, generator=g).to(rows), dim=1) for _ in (1, 2)]


class LonghandStep:
    """The longhand loop on a workload.

    Args:
        count (bool): count forwards and backwards through G
        workload: arguments of :class:`Workload`
    """

    def __init__(self, count: bool = False, **workload: Any):
        self.workload = work = Workload(**workload)
        net, batches, device = work.network(), work.batches(), work.device
        heads = [w.to(device).requires_grad_() for w in work.heads(net, batches)]
        self.batches: List[Any] = [tuple(x.to(device) for x in batch) for batch in batches]
        self.loop = Longhand(net.to(device).train(), heads, CODE_DELTA[CLASSES], RATE, STEPS, MARGIN)
        self.net, self.counts = net, count_passes(net) if count else {}

    def run(self, steps: int, first: int = 0) -> None:
        """Train for some iterations."""
        for step in range(first, first + steps):
            self.loop.step(*self.batches[step % 2], step)
        self._synchronise()

    def _synchronise(self) -> None:
        if self.workload.device.startswith("cuda"):
            torch.cuda.synchronize()

    def head_weights(self) -> List[Tensor]:
        """Weights of F1 and F2."""
        return self.loop.heads

    def state(self) -> Dict[str, np.ndarray]:
        """Parameters and batch-norm statistics by name."""
        state = {**self.net.state_dict(), **{f"head{i}": w for i, w in enumerate(self.head_weights())}}
        return {name: value.detach().cpu().numpy().copy() for name, value in state.items()}

    def passes(self) -> Dict[str, int]:
        """Forwards and backwards through G so far."""
        return dict(self.counts)

    def cuda_memory(self) -> Optional[float]:
        """Peak of CUDA's memory in MB; None on a CPU."""
        return torch.cuda.max_memory_allocated() / 2**20 if self.workload.device.startswith("cuda") else None


class PackageStep(LonghandStep):
    """This package's training loop on a workload.

    Args:
        compile (bool), precision (str): as the flags of a run
        without (sequence of str): of :data:`OPTIMISATIONS`, switched off
    """

    def __init__(
        self, count: bool = False, compile: bool = False, precision: str = "fp32", without: Sequence[str] = (), **workload: Any
    ):
        self.workload = work = Workload(**workload)
        device = torch.device(work.device)
        if work.device == "cpu" and "kept memory" not in without:
            keep_freed_memory()
        net, batches = work.network(), work.batches()
        heads = work.heads(net, batches)
        plain = work.arch == "features" or "channels-last" in without
        layout = torch.contiguous_format if plain else torch.channels_last
        names = [f"class {i}" for i in range(CLASSES + 11)]
        split = LabelSplit(names[:10], names[10:CLASSES], names[CLASSES:])
        hparams = DivergenceHparams(warmup=0, drop_rate=RATE, known_margin=MARGIN)
        self.method = Divergence(net.to(memory_format=layout), split, hparams).to(device)
        with torch.no_grad():
            for head, w in zip(self.method.heads.heads, heads):
                head.weight.data = w.to(device)
        if compile and not compile_network(net, device, str):
            raise RuntimeError("torch.compile does not work here")
        self.method.prepare(Context(steps=STEPS))
        self.method.audit = LossHistory(500, split.num_source, device)
        self.precision = Precision(precision, device)
        self.play = SGDPlayers(self.method.players(), total_steps=STEPS, scaler=self.precision.scaler)
        self.meter = Meter()
        index, to = torch.arange(work.batch, device=device), dict(device=device, memory_format=layout)
        self.batches = [(Batch(s.to(**to), y.to(device), index), Batch(t.to(**to), None, index)) for s, y, t in batches]
        self.net, self.counts = net, count_passes(net) if count else {}

    def run(self, steps: int, first: int = 0) -> None:
        source, target = (iter(side) for side in zip(*(self.batches[step % 2] for step in range(first, first + steps))))
        fit(self.method, self.play, source, target, range(first, first + steps), autocast=self.precision.autocast,
            meter=self.meter, progress=False)  # fmt: skip
        self._synchronise()

    def head_weights(self) -> List[Tensor]:
        return [head.weight for head in self.method.heads.heads]


def count_passes(net: nn.Module) -> Dict[str, int]:
    """Count the forwards and backwards through ``net`` from now on."""
    counts = {"forward": 0, "backward": 0}

    def count_backward(grad: Tensor) -> None:
        counts["backward"] += 1

    def count_forward(module: nn.Module, inputs: Any, out: Tensor) -> None:
        counts["forward"] += 1
        if out.requires_grad:
            out.register_hook(count_backward)

    net.register_forward_hook(count_forward)
    return counts
