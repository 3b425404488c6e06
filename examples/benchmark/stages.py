"""A training step of a method from several stages of the backbone, each in a process of its own."""

from contextlib import ExitStack
from typing import Any, Dict, List, Sequence

import numpy as np
import torch

from benchmark.compare import median_ratio
from benchmark.timing import Worker, interleave, median
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.split import PRESETS
from tllib_ext.training.allocator import keep_freed_memory
from tllib_ext.training.fit import Meter, fit
from tllib_ext.training.frozen import trained_part
from tllib_ext.training.players import SGDPlayers
from tllib_ext.vision.models.backbones import build_backbone

__all__ = ["LAST_STAGE", "StageStep", "compare_stages"]

#: the stage of a network from which training pays on a CPU; what its name begins with -> the stage
LAST_STAGE = {"resnet": "layer4", "mobilenet_v2": "features.14", "small_cnn": "stages.2"}
#: length of the run and of both lists
STEPS, IMAGES = 1000, 300


class StageStep:
    """Training of a method from a stage: random weights, and random inputs of what is trained.

    Args:
        method (str), arch (str), train_from (str): names of a method, a network and a stage of it
        px (int): side of the images
        batch (int): images per domain
        threads (int): PyTorch threads, 0 for its default
    """

    def __init__(self, method: str, arch: str, train_from: str, px: int, batch: int, threads: int = 0):
        if threads:
            torch.set_num_threads(threads)
        keep_freed_memory()
        torch.manual_seed(0)
        split, cls = PRESETS["Office31"], METHODS.get(method)
        network, shape = trained_part(build_backbone(arch, None).to(memory_format=torch.channels_last), train_from, px)
        self.method = cls(network, split, cls.configure(None, {}))
        features = torch.randn(IMAGES, self.method.features_dim)
        labels = np.arange(IMAGES) % split.num_source
        facts: Dict[str, Any] = {"source_features": features.clone, "target_features": features.clone}
        self.method.prepare(Context(STEPS, IMAGES, IMAGES, 0.2, 0, labels, **facts))
        self.method.audit = LossHistory(IMAGES, split.num_source, torch.device("cpu"))
        self.play, self.meter = SGDPlayers(self.method.players(), total_steps=STEPS), Meter()
        index = torch.arange(batch)
        x_s, x_t = (torch.randn(batch, *shape) for _ in range(2))
        if len(shape) == 3:
            x_s, x_t = (x.to(memory_format=torch.channels_last) for x in (x_s, x_t))
        self.batches = Batch(x_s, index % split.num_source, index), Batch(x_t, None, index)

    def run(self, steps: int, first: int) -> None:
        """Train for some iterations."""
        source, target = ([side] * steps for side in self.batches)
        fit(self.method, self.play, iter(source), iter(target), range(first, first + steps), meter=self.meter, progress=False)


def compare_stages(
    arch: str, methods: Sequence[str], stages: Sequence[str], repeats: int, steps: int, **workload: Any
) -> List[Dict[str, Any]]:
    """Time and memory of a step of each method from each of the stages; the last one is what the others are compared with.

    Args:
        arch (str): a network's name
        methods (sequence of str), stages (sequence of str): names of methods and stages
        repeats (int): timings of each side
        steps (int): iterations in each timing
        workload: further arguments of :class:`StageStep`
    """
    rows = []
    for method in methods:
        with ExitStack() as stack:
            workers = {stage: stack.enter_context(Worker(StageStep, method=method, arch=arch, train_from=stage, **workload))
                       for stage in stages}  # fmt: skip
            for worker in workers.values():
                worker.call("run", 1, STEPS // 2)
            times = interleave(workers, "run", [(steps, STEPS // 2 + 1 + steps * i) for i in range(repeats)])
            peaks = {stage: worker.peak() for stage, worker in workers.items()}
        whole = stages[-1]
        for stage in stages:
            rows.append({"arch": arch, **workload, "repeats": repeats, "steps": steps, "method": method, "train_from": stage,
                         "ms": 1000 / steps * median(times[stage]).wall, **median_ratio(times[whole], times[stage]),
                         "mb": peaks[stage], "mb_ratio": peaks[whole] / peaks[stage]})  # fmt: skip
    return rows
