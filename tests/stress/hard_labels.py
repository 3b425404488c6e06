"""The label model on inputs that are hard to judge, five draws each: interval of the rate and change by correction.

    python tests/stress/hard_labels.py                          Gaussian classes in 32 dimensions
    python tests/stress/hard_labels.py data/transfer_mobilenetv2/cifar.npz        and classes of CIFAR-10

Writes docs/results/labels/hard_inputs.json, from which examples/label_audit.py --table makes a table of docs/label_model.md.
"""

import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from tllib_ext import estimate_labels
from tllib_ext.io import write_json

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "results" / "labels" / "hard_inputs.json"
SEEDS = 5
LONG_TAIL = [200, 129, 83, 54, 35, 22, 14, 9, 6, 4]
Samples = Tuple[np.ndarray, np.ndarray]
#: name: class sizes, spread within a class (means have 1), kind of noise, rate, copies of every sample
GAUSSIAN: Dict[str, Tuple[Sequence[int], float, str, float, int]] = {
    "2 classes of 100": ([100, 100], 1.0, "symmetric", 0.2, 1),
    "2 classes of 100, labels of one wrong": ([100, 100], 1.0, "one way", 0.4, 1),
    "2 overlapping classes of 100": ([100, 100], 4.0, "symmetric", 0.2, 1),
    "5 classes of 40 and one of 1": ([40] * 5 + [1], 1.0, "symmetric", 0.2, 1),
    "3 classes, 8 samples": ([3, 3, 2], 0.5, "symmetric", 0.2, 1),
    "1000 to 3": ([1000, 3], 1.0, "symmetric", 0.1, 1),
    "500, 50, 5, 5, 3": ([500, 50, 5, 5, 3], 1.0, "symmetric", 0.2, 1),
    "10 classes of 200 to 4": (LONG_TAIL, 0.8, "symmetric", 0.3, 1),
    "10 classes of 200 to 4, pair": (LONG_TAIL, 0.8, "pair", 0.2, 1),
    "10 classes of 200 to 4, pair 0.4": (LONG_TAIL, 0.8, "pair", 0.4, 1),
    "10 classes, 70 % wrong": ([60] * 10, 1.0, "symmetric", 0.7, 1),
    "10 classes, 70 % wrong, pair": ([60] * 10, 1.0, "pair", 0.7, 1),
    "6 classes, every sample 4 times": ([25] * 6, 1.0, "symmetric", 0.2, 4),
    "5 weak classes": ([60] * 5, 2.5, "symmetric", 0.2, 1),
    "5 weak classes, pair": ([60] * 5, 2.5, "pair", 0.4, 1),
    "5 very weak classes": ([120] * 5, 5.0, "symmetric", 0.2, 1),
    "5 very weak classes, clean": ([120] * 5, 5.0, "symmetric", 0.0, 1),
}
#: name: classes of CIFAR-10, samples of each, kind of noise, rate
CIFAR: Dict[str, Tuple[Sequence[int], int, str, float]] = {
    "CIFAR-10, cat and dog": ([3, 5], 200, "symmetric", 0.2),
    "CIFAR-10, plane and car": ([0, 1], 200, "symmetric", 0.2),
    "CIFAR-10, 5 animals": ([2, 3, 4, 5, 7], 60, "symmetric", 0.2),
    "CIFAR-10, 5 animals, pair": ([2, 3, 4, 5, 7], 60, "pair", 0.4),
}


def gaussian(sizes: Sequence[int], spread: float, seed: int) -> Samples:
    """Gaussian classes around random means, far from the origin."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(len(sizes)), sizes)
    means, away = rng.standard_normal((len(sizes), 32)), 3 * rng.standard_normal(32)
    return (means[true] + spread * rng.standard_normal((len(true), 32)) + away).astype(np.float32), true


def noisy(true: np.ndarray, kind: str, rate: float, seed: int) -> np.ndarray:
    """Labels of which a share is wrong."""
    rng, k = np.random.default_rng(1000 + seed), true.max() + 1
    flipped = rng.random(len(true)) < rate
    step = rng.integers(1, k, size=len(true)) if kind == "symmetric" else 1
    return np.where(flipped & ((kind != "one way") | (true == 0)), (true + step) % k, true)


def main() -> None:
    """Measure and record."""
    cases: List[Tuple[str, Samples, np.ndarray]] = []
    for seed in range(SEEDS):
        for name, (sizes, spread, kind, rate, copies) in GAUSSIAN.items():
            x, true = gaussian(sizes, spread, seed)
            given = noisy(true, kind, rate, seed)
            cases.append((name, (np.tile(x, (copies, 1)), np.tile(true, copies)), np.tile(given, copies)))
        for file in sys.argv[1:]:
            stored = np.load(file)
            for name, (classes, size, kind, rate) in CIFAR.items():
                rng = np.random.default_rng(seed)
                rows = np.concatenate([rng.permutation(np.flatnonzero(stored["labels"] == k))[:size] for k in classes])
                true = np.repeat(np.arange(len(classes)), size)
                cases.append((name, (stored["features"][rows], true), noisy(true, kind, rate, seed)))
    records: Dict[str, List[Any]] = {}
    for name, (x, true), given in cases:
        model = estimate_labels(x, given, int(true.max()) + 1)
        change = (np.count_nonzero(model.corrected == true) - np.count_nonzero(given == true)) / len(true)
        records.setdefault(name, []).append({"wrong": float((given != true).mean()), "interval": model.rate_interval,
                                             "known": model.rate_known, "change": change})  # fmt: skip
    write_json(RECORDS, records)


if __name__ == "__main__":
    main()
