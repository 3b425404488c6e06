"""The same networks, heads and batches for both sides of a comparison."""

import copy
import math
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.longhand import Longhand
from tllib_ext.cli.allocator import keep_freed_memory
from tllib_ext.cpu.suit import suit_cpu
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import CODE_DELTA, Divergence, DivergenceHparams
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.compile import compile_network
from tllib_ext.training.fit import Meter, fit
from tllib_ext.training.players import SGDPlayers
from tllib_ext.training.precision import Precision
from tllib_ext.vision.models.backbones import build_backbone

__all__ = ["Scene", "OurStep", "PlainStep"]

STEPS, RATE = 5001, 0.2
#: every target image of these random ones looks known, so that Step C, most of an iteration, is never skipped.
MARGIN = -1e6


@dataclass
class Scene:
    """What to train on: random images (or features) and weights, a function of the settings alone.

    Args:
        arch (str): a backbone's name, or ``features`` (2048 numbers, a bottleneck of 512)
        px (int): side of the images
        batch (int): images per domain
        device (str): where
        threads (int): of PyTorch, 0 leaves it alone
        double (bool): float64, in which rounding hides nothing
        classes (int): K, of which half are shared
        pool (int): different batches, taken in turn
        source (int): length of the source list, which the audit of the labels keeps a row for
    """

    arch: str
    px: int = 128
    batch: int = 12
    device: str = "cpu"
    threads: int = 0
    double: bool = False
    classes: int = 20
    pool: int = 2
    source: int = 500

    @property
    def split(self) -> LabelSplit:
        """Half of the classes shared, half private, eleven unknown."""
        half = self.classes // 2
        kinds = (("s", half), ("p", self.classes - half), ("u", 11))
        return LabelSplit(*([f"{kind}{i}" for i in range(size)] for kind, size in kinds))

    @property
    def delta(self) -> float:
        """The authors' border for so many classes."""
        return CODE_DELTA.get(self.classes, math.log(self.classes))

    def network(self) -> nn.Module:
        """G with random weights."""
        torch.manual_seed(0)
        net = FeatureBottleneck(2048, 512) if self.arch == "features" else build_backbone(self.arch, None)
        return net.double() if self.double else net

    def batches(self) -> List[Tuple[Tensor, Tensor, Tensor]]:
        """Source images, labels, target images."""
        g = torch.Generator().manual_seed(1)
        shape = (self.batch, 2048) if self.arch == "features" else (self.batch, 3, self.px, self.px)
        kind = torch.float64 if self.double else torch.float32
        made = []
        for _ in range(self.pool):
            x_s, x_t = torch.randn(shape, generator=g).to(kind), torch.randn(shape, generator=g).to(kind)
            made.append((x_s, torch.randint(self.classes, (self.batch,), generator=g), x_t))
        return made

    def heads(self, net: nn.Module, batches: List[Tuple[Tensor, Tensor, Tensor]]) -> List[Tensor]:
        """Two heads that nearly agree and are sure of some target images, as after some training."""
        with torch.no_grad():
            f = F.normalize(torch.cat([copy.deepcopy(net).train()(x_t) for _, _, x_t in batches]), dim=1)
            rows = F.normalize((f - f.mean(0))[torch.arange(self.classes) * len(f) // self.classes], dim=1)
            g = torch.Generator().manual_seed(2)
            return [F.normalize(rows + 0.003 * torch.randn(rows.shape, generator=g).to(rows), dim=1) for _ in (1, 2)]

    def setup(self) -> torch.device:
        """Threads, and the device."""
        if self.threads:
            torch.set_num_threads(self.threads)
        return torch.device(self.device)


class PlainStep:
    """The longhand loop on a scene.

    Args:
        count (bool): count forwards and backwards; a counted network is not timed
        scene: arguments of :class:`Scene`
    """

    def __init__(self, count: bool = False, **scene: Any):
        self.scene = Scene(**scene)
        device = self.scene.setup()
        net, batches = self.scene.network(), self.scene.batches()
        heads = [w.to(device).requires_grad_() for w in self.scene.heads(net, batches)]
        self.batches = [tuple(x.to(device) for x in batch) for batch in batches]
        self.loop = Longhand(net.to(device).train(), heads, self.scene.delta, RATE, STEPS, MARGIN)
        self.net = self.loop.net
        self.counts = count_passes(self.net) if count else {}

    def run(self, steps: int, first: int = 0) -> None:
        """Some iterations."""
        for step in range(first, first + steps):
            self.loop.step(*self.batches[step % len(self.batches)], step)
        synchronise(self.scene.device)

    def state(self) -> Dict[str, np.ndarray]:
        """Parameters and statistics by name."""
        return numbers(self.net, self.loop.heads)

    def passes(self) -> Dict[str, int]:
        """Forwards and backwards through G so far."""
        return dict(self.counts)

    def memory(self) -> Optional[float]:
        """Peak of CUDA's memory in MB."""
        return torch.cuda.max_memory_allocated() / 2**20 if self.scene.device.startswith("cuda") else None


class OurStep(PlainStep):
    """The package's own loop on a scene; ``compile`` and ``precision`` as the flags do."""

    def __init__(self, count: bool = False, compile: bool = False, precision: str = "fp32", **scene: Any):
        self.scene = Scene(**scene)
        device = self.scene.setup()
        if device.type == "cpu":
            keep_freed_memory()
        net, batches = self.scene.network(), self.scene.batches()
        heads = self.scene.heads(net, batches)
        layout = torch.contiguous_format if self.scene.arch == "features" else torch.channels_last
        hparams = DivergenceHparams(warmup=0, drop_rate=RATE, known_margin=MARGIN)
        split = self.scene.split
        self.method = Divergence(net.to(memory_format=layout), split, hparams).to(device)
        with torch.no_grad():
            for head, w in zip(self.method.heads.heads, heads):
                head.weight.data = w.to(device)
        if device.type == "cpu":
            suit_cpu(net)
        start = time.perf_counter()
        if compile and not compile_network(net, device, str):
            raise RuntimeError("nothing can be compiled here")
        self.building = time.perf_counter() - start
        self.method.prepare(Context(steps=STEPS))
        self.method.audit = LossHistory(self.scene.source, split.num_source, device)
        self.precision = Precision(precision, device)
        self.play = SGDPlayers(self.method.players(), total_steps=STEPS, scaler=self.precision.scaler)
        self.meter = Meter()
        index, place = torch.arange(self.scene.batch, device=device), dict(device=device, memory_format=layout)
        self.batches = [(Batch(s.to(**place), y.to(device), index), Batch(t.to(**place), None, index)) for s, y, t in batches]
        self.net, self.counts = net, count_passes(net) if count else {}

    def run(self, steps: int, first: int = 0) -> None:
        pairs = [self.batches[step % len(self.batches)] for step in range(first, first + steps)]
        source, target = (iter(side) for side in zip(*pairs))
        fit(self.method, self.play, source, target, range(first, first + steps), autocast=self.precision.autocast,
            meter=self.meter, progress=False)  # fmt: skip
        synchronise(self.scene.device)

    def compile_seconds(self) -> float:
        """How long compilation took before the first step, which ``torch.compile`` does most of its work in."""
        return self.building

    def state(self) -> Dict[str, np.ndarray]:
        return numbers(self.net, [head.weight for head in self.method.heads.heads])


def numbers(net: nn.Module, heads: List[Tensor]) -> Dict[str, np.ndarray]:
    """Everything that training changes, as arrays."""
    state = {**net.state_dict(), **{f"head{i}": w for i, w in enumerate(heads)}}
    return {name: value.detach().cpu().numpy().copy() for name, value in state.items()}


def synchronise(device: str) -> None:
    """Wait for CUDA, or its clock would show nothing."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def count_passes(net: nn.Module) -> Dict[str, int]:
    """A counter of forwards and backwards through ``net`` from now on."""
    counts = {"forward": 0, "backward": 0}

    def back(grad: Tensor) -> None:
        counts["backward"] += 1

    def passed(module: nn.Module, inputs: Any, out: Tensor) -> None:
        counts["forward"] += 1
        if out.requires_grad:
            out.register_hook(back)

    net.register_forward_hook(passed)
    return counts
