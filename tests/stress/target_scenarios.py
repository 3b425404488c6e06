"""The target model on development scenarios, with and without small neighbourhoods: OS, H-score and the error of the share.

    python tests/stress/target_scenarios.py data/transfer_mobilenetv2 data/office31_resnet50

Six directions between CIFAR-10, Natural Images and Caltech-101; and halves of Caltech-101, amazon and CIFAR-10, the target half
with features shifted by class and by domain and blurred. Of Office-31 amazon alone takes part. Writes
docs/results/target_scenarios/records.json, from which docs/fill.py makes a table of docs/target_model.md.
"""

import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from unittest.mock import patch

import numpy as np

from tllib_ext.evaluation.openset import evaluate
from tllib_ext.io import write_json
from tllib_ext.labels import estimate_labels
from tllib_ext.split import LabelSplit
from tllib_ext.target import estimate_target, model
from tllib_ext.vision.datasets.noisy import draw_labels, transition_matrix

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "results" / "target_scenarios" / "records.json"
Noise = Optional[Tuple[str, float]]
Sizes = Optional[Tuple[int, int]]
PAIR, SYMMETRIC = ("pair", 0.2), ("symmetric", 0.45)
#: halves: shared, source private and target private classes
HALVES = {
    "caltech": ((10, 5, 15), (10, 0, 20), (10, 10, 10), (8, 22, 0), (15, 10, 5), (20, 0, 10)),
    "amazon": ((10, 10, 11), (10, 0, 21), (10, 10, 4), (10, 21, 0), (20, 0, 11)),
    "cifar": ((4, 3, 3), (3, 0, 7), (5, 5, 0)),
}
#: shift of each class, in distances of classes, shift of the domain and blur, in standard deviations of a feature
SHIFTS = ((0.5, 0.5, 0.5), (0.8, 0.5, 1.0))


class Scenario(NamedTuple):
    """A task: ``split`` and ``shift`` of two halves, or two data sets; images per target class; noise of the source labels."""

    source: str
    target: str
    sizes: Sizes
    noise: Noise
    seed: int
    split: Optional[Tuple[int, int, int]] = None
    shift: Tuple[float, float, float] = (0.0, 0.0, 0.0)
    unknown: bool = True


def scenarios() -> Iterator[Scenario]:
    """All of them."""
    for source, target in (("cifar", "natural"), ("caltech", "natural"), ("natural", "cifar"), ("natural", "caltech"),
                           ("cifar", "caltech"), ("caltech", "cifar")):  # fmt: skip
        yield Scenario(source, target, None, None, 0)
        yield Scenario(source, target, None, SYMMETRIC, 0)
        yield Scenario(source, target, None, None, 2, unknown=False)
        yield Scenario(source, target, (8, 20), None, 1)
        yield Scenario(source, target, (8, 20), PAIR, 2)
    for name, splits in HALVES.items():
        for number, split in enumerate(splits):
            for shift in SHIFTS:
                for sizes in (None, (6, 18)):
                    yield Scenario(name, name, sizes, PAIR if number % 2 else None, 3 + number, split, shift)


def shifted(x: np.ndarray, y: np.ndarray, shift: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """Features of another domain: scaled, shifted by class towards mixtures of other classes and as a whole, blurred."""
    means = np.stack([x[y == k].mean(0) for k in range(y.max() + 1)])
    x = x * np.exp(0.3 * rng.standard_normal(x.shape[1]))
    towards = rng.standard_normal((len(means), len(means)))
    towards = towards / np.linalg.norm(towards, axis=1, keepdims=True) @ (means - means.mean(0))
    x = x + shift[0] * towards[y] + shift[1] * means.std(0).mean() * rng.standard_normal(x.shape[1])
    x = x + shift[2] * x.std(0).mean() * rng.standard_normal(x.shape)
    return np.maximum(x, 0).astype(np.float32)  # features behind a ReLU


def read(roots: Sequence[Path], name: str) -> Tuple[np.ndarray, np.ndarray, List[str]]:
    """Features, labels and classes of a data set."""
    file = np.load(next(root / f"{name}.npz" for root in roots if (root / f"{name}.npz").exists()))
    return file["features"].astype(np.float32), file["labels"].astype(np.int64), [str(c) for c in file["classes"]]


def make(roots: Sequence[Path], s: Scenario) -> Tuple[LabelSplit, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Label sets, source features and posterior of their labels, target features and true labels."""
    rng = np.random.default_rng(s.seed)
    (xs, ys, ours), (xt, yt, theirs) = read(roots, s.source), read(roots, s.target)
    if s.split is None:
        sets = [[c for c in ours if c in theirs], [c for c in ours if c not in theirs], [c for c in theirs if c not in ours]]
        split = LabelSplit(sets[0], sets[1], sets[2] if s.unknown else [])
    else:
        half, order, (a, b, c) = rng.random(len(xs)) < 0.5, rng.permutation(len(ours)), s.split
        xt = shifted(xt, yt, s.shift, rng)[~half]
        xs, ys, yt = xs[half], ys[half], yt[~half]
        names = [ours[i] for i in order]
        split = LabelSplit(names[:a], names[a : a + b], names[a + b : a + b + c])
    kept = np.array([c in split.source_classes for c in ours])[ys]
    xs, ys = xs[kept], np.array([split.source_index(c) if c in split.source_classes else -1 for c in ours])[ys[kept]]
    held = {*split.shared, *split.target_private}
    rows = np.flatnonzero(np.array([c in held for c in theirs])[yt])
    if s.sizes is not None:
        rows = np.concatenate([rng.permutation(rows[yt[rows] == k])[: rng.integers(s.sizes[0], s.sizes[1] + 1)]
                               for k in np.unique(yt[rows])])  # fmt: skip
    xt, yt = xt[rows], np.array([split.target_index(c) if c in held else -1 for c in theirs])[yt[rows]]
    posterior = np.eye(split.num_source)[ys]
    if s.noise is not None:
        given = draw_labels(ys, transition_matrix(*s.noise, split.num_source), s.seed)
        posterior = estimate_labels(xs, given, split.num_source, seed=s.seed).responsibilities
    return split, xs, posterior, xt, yt


def main() -> None:
    """Measure and write the records."""
    roots, records = [Path(root) for root in sys.argv[1:]], []
    for s in scenarios():
        split, xs, posterior, xt, yt = make(roots, s)
        for name, smaller in (("15", ()), ("15, and 5 and 10 where classes are small", model.SMALLER)):
            with patch.object(model, "SMALLER", smaller):
                found = estimate_target(xs, posterior, xt)
            report = evaluate(yt, found.labels, found.posterior[:, -1], split)
            record: Dict[str, Any] = {**s._asdict(), "neighbours": name, "os": report.os, "h_score": report.h_score}
            record.update(share=found.share, share_std=found.share_std, true_share=float((yt == split.num_source).mean()))
            records.append(record)
            print(s.source, s.target, s.split, s.sizes, s.noise, name, f"{report.os:.3f}", report.h_score, flush=True)
    write_json(RECORDS, {"command": "python tests/stress/target_scenarios.py data/transfer_mobilenetv2 data/office31_resnet50",
                         "records": records})  # fmt: skip


if __name__ == "__main__":
    main()
