"""What a run costs as lists, classes and processes grow: each measured in a fresh process."""

import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import torch

from benchmark.contest import Contestant, median
from benchmark.scenes import OurStep, Scene

__all__ = ["start_up", "evaluation", "steps_by_classes", "steps_by_processes", "write_list"]

CLASSES = 31  # of Office-31, split 10/10/11


def write_list(file: Path, lines: int, shuffled: bool) -> None:
    """A list file of ``lines`` images of all classes, sorted by class as such files mostly are, or not."""
    labels = np.sort(np.arange(lines) % CLASSES)
    if shuffled:
        labels = np.random.default_rng(0).permutation(labels)
    text = "\n".join(f"domain/images/class_{label:02}/frame_{i:07}.jpg {label}" for i, label in enumerate(labels.tolist()))
    file.write_text(text + "\n")


class Start:
    """From a list file to the first batches: reader, view, noise, samplers; nothing opens an image."""

    def __init__(self, file: str, noise: str = "symmetric"):
        self.file, self.noise = file, noise

    def run(self) -> None:
        """All of it."""
        from tllib_ext.split import LabelSplit
        from tllib_ext.vision.datasets.imagelist import ImageList
        from tllib_ext.vision.datasets.noisy import NoisyLabels
        from tllib_ext.vision.datasets.sampling import BalancedBatches, ShuffledBatches
        from tllib_ext.vision.datasets.universal import UniversalView

        names = [f"class_{i:02}" for i in range(CLASSES)]
        data = ImageList("data", names, self.file)
        # Nobody is left out: the source is as long as the file.
        noisy = NoisyLabels(UniversalView(data, LabelSplit(names[:10], names[10:], []), "source"), self.noise, 0.2)
        target = UniversalView(data, LabelSplit(names[:10], names[10:20], names[20:]), "target")
        self.batches = BalancedBatches(noisy.targets, 36)(0), ShuffledBatches(len(target), 36)(0)


class Metrics:
    """All metrics of a target of ``images`` images, from predictions that came in batches."""

    def __init__(self, images: int, classes: int = 20):
        self.images, self.split = images, Scene("features", classes=classes).split

    def run(self) -> None:
        """Predictions of 128 images at a time, then the report."""
        from tllib_ext.evaluation.openset import OpenSetEvaluator
        from tllib_ext.methods.base import Prediction

        rng, evaluator, k = np.random.default_rng(0), OpenSetEvaluator(self.split), self.split.num_source
        for start in range(0, self.images, 128):
            index = np.arange(start, min(start + 128, self.images))
            probs = rng.random((len(index), k), dtype=np.float32)
            labels = np.where(index % 3 == 0, k, index % (k // 2))
            score = rng.random(len(index), dtype=np.float32)
            evaluator.update(Prediction(probs / probs.sum(1, keepdims=True), score, score > 0.5), labels, index)
        evaluator.compute()


def _once(build: Any, **options: Any) -> Dict[str, float]:
    with Contestant(build, **options) as alone:
        before, timing = alone.peak(), alone.time("run")
        return {"seconds": timing.wall, "cpu_seconds": timing.cpu, "peak_mb": alone.peak(), "before_mb": before}


def start_up(folder: Path, sizes: List[int]) -> List[Dict[str, Any]]:
    """Time and memory from a list file to the first batch, by its length and order."""
    rows = []
    for lines in sizes:
        for shuffled in (False, True):
            file = folder / f"list_{lines}.txt"
            write_list(file, lines, shuffled)
            row = {"lines": lines, "order": "shuffled" if shuffled else "by class"}
            rows.append({**row, **_once(Start, file=str(file))})
            file.unlink()
    return rows


def evaluation(sizes: List[int]) -> List[Dict[str, Any]]:
    """Time and memory of the metrics by the target's length."""
    return [{"images": images, **_once(Metrics, images=images)} for images in sizes]


def steps_by_classes(classes: List[int], repeats: int, **scene: Any) -> List[Dict[str, Any]]:
    """Time of a step on features by the number of classes."""
    rows = []
    for number in classes:
        with Contestant(OurStep, arch="features", batch=36, classes=number, **scene) as alone:
            alone.ask("run", 2)
            steps = median([alone.time("run", 10, 2 + 10 * i) for i in range(repeats)])
            rows.append({"classes": number, "ms": 100 * steps.wall, "cpu_ms": 100 * steps.cpu, "peak_mb": alone.peak()})
    return rows


def steps_by_processes(processes: List[int], steps: int, batch: int = 36) -> List[Dict[str, Any]]:
    """Time of a step on features whose batch of ``batch`` is shared by some processes (gloo)."""
    context, rows = multiprocessing.get_context("spawn"), []
    for world in processes:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        answers = context.Queue()
        team = [context.Process(target=_share, args=(r, world, port, batch // world, steps, answers)) for r in range(world)]
        for process in team:
            process.start()
        seconds = [answers.get(timeout=900) for _ in team]
        for process in team:
            process.join()
        rows.append({"processes": world, "batch": batch // world, "ms": 1000 * max(seconds) / steps})
    return rows


def _share(rank: int, world: int, port: int, batch: int, steps: int, answers: Any) -> None:
    from tllib_ext.distributed import start
    from tllib_ext.modules.synced_batchnorm import convert_sync_batchnorm

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))  # fmt: skip
    start("cpu")
    ours = OurStep(arch="features", batch=batch)
    if world > 1:
        convert_sync_batchnorm(ours.method)  # as every run does
    ours.run(2)
    begin = time.perf_counter()
    ours.run(steps, 2)
    answers.put(time.perf_counter() - begin)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
