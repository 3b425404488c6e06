"""Long lists: memory stays small and grows no faster than the list."""

import numpy as np
import pytest
from benchmark.timing import Worker

from tllib_ext.evaluation.openset import OpenSetEvaluator
from tllib_ext.methods.base import Prediction
from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets.imagelist import ImageList
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.sampling import BalancedBatches, ShuffledBatches
from tllib_ext.vision.datasets.universal import UniversalView

CLASSES = [f"class_{i:02}" for i in range(31)]
SPLIT = LabelSplit(CLASSES[:10], CLASSES[10:20], CLASSES[20:])


class Start:
    """From a list file to the first batches: reader, view, noise, samplers; no image is opened."""

    def __init__(self, file):
        self.file = file

    def run(self):
        data = ImageList("data", CLASSES, self.file)
        # Without target-private classes the source is as long as the file.
        noisy = NoisyLabels(UniversalView(data, LabelSplit(CLASSES[:10], CLASSES[10:], []), "source"), "symmetric", 0.2)
        target = UniversalView(data, SPLIT, "target")
        return len(BalancedBatches(noisy.targets, 36)(0)), len(ShuffledBatches(len(target), 36)(0))


class Metrics:
    """All metrics of a target domain, from predictions of 128 images at a time."""

    def __init__(self, images):
        self.images = images

    def run(self):
        rng, evaluator, k = np.random.default_rng(0), OpenSetEvaluator(SPLIT), SPLIT.num_source
        for start in range(0, self.images, 128):
            index = np.arange(start, min(start + 128, self.images))
            probs, score = rng.random((len(index), k), dtype=np.float32), rng.random(len(index), dtype=np.float32)
            labels = np.where(index % 3 == 0, k, index % (k // 2))
            evaluator.update(Prediction(probs / probs.sum(1, keepdims=True), score, score > 0.5), labels, index)
        evaluator.compute()


def grown(build, **options):
    """Peak memory of ``run`` in a fresh process, in MB: before and after."""
    with Worker(build, **options) as worker:
        before = worker.peak()
        worker.call("run")
        return before, worker.peak()


def write_list(file, lines, shuffled):
    labels = np.sort(np.arange(lines) % len(CLASSES))
    if shuffled:
        labels = np.random.default_rng(0).permutation(labels)
    file.write_text("".join(f"domain/images/class_{k:02}/frame_{i:07}.jpg {k}\n" for i, k in enumerate(labels.tolist())))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_list_in_any_order_gives_batches(tmp_path, shuffled):
    write_list(tmp_path / "list.txt", 400, shuffled)
    assert Start(str(tmp_path / "list.txt")).run() == (36, 36)


def test_samplers_hold_one_number_per_image():
    labels = np.arange(200_000) % 20
    balanced, shuffled = BalancedBatches(labels, 36), ShuffledBatches(len(labels), 36)
    assert sum(value.nbytes for value in vars(balanced).values() if isinstance(value, np.ndarray)) == 8 * len(labels)
    shuffled(0)
    assert sum(value.nbytes for value in vars(shuffled).values() if isinstance(value, np.ndarray)) == 8 * len(labels)


@pytest.mark.slow
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_million_lines_stay_below_a_gigabyte_and_a_half(tmp_path, shuffled):
    write_list(tmp_path / "list.txt", 1_000_000, shuffled)
    assert grown(Start, file=str(tmp_path / "list.txt"))[1] < 1500


@pytest.mark.slow
def test_memory_of_the_metrics_grows_linearly():
    small, large = (after - before for before, after in (grown(Metrics, images=images) for images in (50_000, 500_000)))
    assert large < 12 * max(small, 30)
