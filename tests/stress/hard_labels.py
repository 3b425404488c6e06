"""The label model on inputs that are hard to judge, five draws each: interval of the rate and change by correction.

    python tests/stress/hard_labels.py                          Gaussian classes in 32 dimensions
    python tests/stress/hard_labels.py data/transfer_mobilenetv2/cifar.npz        and classes of CIFAR-10
    python tests/stress/hard_labels.py --random 1000 data/transfer_mobilenetv2/{cifar,caltech,natural}.npz \\
        data/office31_resnet50/{amazon,webcam}.npz              random classes, sizes, blur, noises and rates of these instead

Writes docs/results/labels/hard_inputs.json (random_inputs.json), from which examples/label_audit.py --table makes tables of
docs/label_model.md.
"""

import argparse
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from tllib_ext import estimate_labels
from tllib_ext.io import write_json

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "results" / "labels"
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


def random_input(number: int, files: Sequence[Path]) -> Tuple[str, Samples, np.ndarray]:
    """Some classes of a data set, of equal sizes or with a long tail, some with blurred features; labels wrong at random."""
    rng, file = np.random.default_rng(50_000 + number), files[number % len(files)]
    stored = np.load(file)
    x, y = stored["features"].astype(np.float32), stored["labels"].astype(np.int64)
    classes = rng.permutation(y.max() + 1)[: rng.integers(3, min(y.max() + 1, 16) + 1)]
    tail = rng.choice([0.05, 0.1, 0.3, 1, 1, 1, 1, 1])
    sizes = rng.choice([15, 30, 60, 150, 400]) * tail ** (np.arange(len(classes)) / (len(classes) - 1))
    rows = [rng.permutation(np.flatnonzero(y == k))[: max(4, int(size))] for k, size in zip(classes, sizes)]
    true, x = np.repeat(np.arange(len(rows)), [len(r) for r in rows]), x[np.concatenate(rows)]
    blur = rng.choice([0, 0, 0, 0.5, 1.0, 2.0])
    x = x + np.float32(blur) * x.std(0) * rng.standard_normal(x.shape, dtype=np.float32)
    kind, rate = str(rng.choice(["pair", "symmetric", "random partner"])), float(rng.choice([0, 0.1, 0.2, 0.3, 0.4, 0.45]))
    if kind == "random partner":
        step = rng.integers(1, len(rows), size=len(rows))[true]
        given = np.where(rng.random(len(true)) < rate, (true + step) % len(rows), true)
    else:
        given = noisy(true, kind, rate, number)
    return f"{file.stem}, {kind}{', long tail' if tail < 1 else ''}", (x, true), given


def measured(x: np.ndarray, true: np.ndarray, given: np.ndarray) -> Dict[str, Any]:
    """What is recorded of an input."""
    model = estimate_labels(x, given, int(true.max()) + 1)
    change = (np.count_nonzero(model.corrected == true) - np.count_nonzero(given == true)) / len(true)
    return {"wrong": round(float((given != true).mean()), 4), "interval": [round(bound, 4) for bound in model.rate_interval],
            "known": model.rate_known, "change": round(change, 4)}  # fmt: skip


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="features (.npz)")
    parser.add_argument("--random", type=int, default=0, help="number of random inputs of the files")
    args = parser.parse_args()
    if args.random:
        inputs = (random_input(number, args.files) for number in range(args.random))
        write_json(RECORDS / "random_inputs.json", [{"input": name, **measured(*data, given)} for name, data, given in inputs])
        return
    cases: List[Tuple[str, Samples, np.ndarray]] = []
    for seed in range(SEEDS):
        for name, (sizes, spread, kind, rate, copies) in GAUSSIAN.items():
            x, true = gaussian(sizes, spread, seed)
            given = noisy(true, kind, rate, seed)
            cases.append((name, (np.tile(x, (copies, 1)), np.tile(true, copies)), np.tile(given, copies)))
        for file in args.files:
            stored = np.load(file)
            for name, (classes, size, kind, rate) in CIFAR.items():
                rng = np.random.default_rng(seed)
                rows = np.concatenate([rng.permutation(np.flatnonzero(stored["labels"] == k))[:size] for k in classes])
                true = np.repeat(np.arange(len(classes)), size)
                cases.append((name, (stored["features"][rows], true), noisy(true, kind, rate, seed)))
    records: Dict[str, List[Any]] = {}
    for name, data, given in cases:
        records.setdefault(name, []).append(measured(*data, given))
    write_json(RECORDS / "hard_inputs.json", records)


if __name__ == "__main__":
    main()
