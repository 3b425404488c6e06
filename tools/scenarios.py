"""Development scenarios for the target model: random label sets of features whose style, data set or shift changes.

    for scenario in scenarios(Path("data"), noises=("clean",)):
        posterior = source_posterior(scenario, cache=Path("runs/label_cache"))

Groups: ``style`` (six directions of photo, cartoon, sketch), ``transfer`` (six directions of CIFAR-10, Natural Images,
Caltech-101), ``halves`` (two halves of one data set, the target half shifted by class and by domain, scaled and blurred),
and as a check only ``office31`` (six directions, random label sets) and ``office31_tasks`` (the six standard tasks).
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from tllib_ext.evaluation.openset import OpenSetReport, evaluate
from tllib_ext.labels import estimate_labels
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.vision.datasets.noisy import draw_labels, transition_matrix

__all__ = ["CHECKS", "GROUPS", "KINDS", "NOISES", "Scenario", "scenarios", "source_posterior"]

#: group: folder of the features, and the data sets; every ordered pair of two is a task, or each with itself (halves).
FOLDERS = {"style": ("pacs_mobilenetv2", ("photo", "cartoon", "sketch")),
           "transfer": ("transfer_mobilenetv2", ("cifar", "natural", "caltech")),
           "halves": ("", ("transfer_mobilenetv2/caltech", "transfer_mobilenetv2/cifar", "office31_resnet50/amazon")),
           "office31": ("office31_resnet50", ("amazon", "dslr", "webcam")),
           "office31_tasks": ("office31_resnet50", ("amazon", "dslr", "webcam"))}  # fmt: skip
GROUPS, CHECKS = ("style", "transfer", "halves"), ("office31", "office31_tasks")
KINDS = ("universal", "partial", "open", "closed")
NOISES: Dict[str, Optional[Tuple[str, float]]] = {
    "clean": None, "pair 0.2": ("pair", 0.2), "symmetric 0.45": ("symmetric", 0.45)}  # fmt: skip
#: least and most images of a target class; a source class has at most the last number.
SIZES = ((10, 30), (30, 100), (10, 100))
#: halves: shift of each class, in distances of classes, shift of the domain and blur, in standard deviations of a feature.
SHIFTS = ((0.5, 0.5, 0.5), (0.8, 0.5, 1.0))


@dataclass(frozen=True)
class Scenario:
    """A task: labelled source features, of whose labels some are wrong, and target features with true labels to measure by."""

    group: str
    task: str
    noise: str
    seed: int
    split: LabelSplit
    source: np.ndarray  # (S, D)
    given: np.ndarray  # source labels, some of them wrong, (S,)
    true: np.ndarray  # source labels, (S,)
    target: np.ndarray  # (N, D)
    target_labels: np.ndarray  # K for unknown, (N,)

    @property
    def num_classes(self) -> int:
        """K."""
        return self.split.num_source

    @property
    def unknown_share(self) -> float:
        """Share of the target images that are of no source class."""
        return float((self.target_labels == self.split.unknown).mean())

    @property
    def description(self) -> str:
        """A line that no other scenario has."""
        sets = "/".join(str(len(part)) for part in (self.split.shared, self.split.source_private, self.split.target_private))
        return f"{self.group} {self.task} {self.split.scenario} {sets}, {len(self.target)} images, {self.noise}, {self.seed}"

    def evaluate(self, posterior: np.ndarray, kept: Optional[np.ndarray] = None) -> OpenSetReport:
        """Metrics of a posterior (N, K + 1), unknown last and decided at one half; of the ``kept`` images only."""
        rows = np.arange(len(posterior)) if kept is None else kept
        p = posterior[rows]
        predicted = np.where(p[:, -1] > 0.5, self.split.unknown, p[:, :-1].argmax(1))
        return evaluate(self.target_labels[rows], predicted, p[:, -1], self.split, p[:, :-1])


def scenarios(
    data: Path,
    groups: Sequence[str] = GROUPS,
    noises: Sequence[str] = tuple(NOISES),
    kinds: Sequence[str] = KINDS,
    seeds: Sequence[int] = (0, 1, 2),
) -> Iterator[Scenario]:
    """Every task of every group with every kind of label sets, noise and seed; noise changes nothing but the labels."""
    for group in groups:
        folder, names = FOLDERS[group]
        tasks = [(name, name) for name in names] if group == "halves" else [(a, b) for a in names for b in names if a != b]
        for number, (source, target) in enumerate(tasks):
            for kind in KINDS if group != "office31_tasks" else ("universal",):
                for seed in seeds if kind in kinds else ():
                    rng = np.random.default_rng((seed, number, KINDS.index(kind), [*FOLDERS].index(group)))
                    parts = _domains(data / folder, source, target, group == "halves", rng)
                    task = f"{Path(source).name} to {Path(target).name}" if source != target else f"{Path(source).name} halves"
                    yield from _with_noises(group, task, kind, seed, noises, parts, rng)


def source_posterior(scenario: Scenario, cache: Optional[Path] = None) -> np.ndarray:
    """Posterior of the true source labels (S, K): one-hot where labels are clean, else the label model's, kept in ``cache``."""
    if NOISES[scenario.noise] is None:
        return np.eye(scenario.num_classes)[scenario.given]
    file = cache / f"{scenario.description.replace(' ', '_').replace('/', '-')}.npy" if cache is not None else None
    if file is not None and file.exists():
        return np.asarray(np.load(file))
    found = estimate_labels(scenario.source, scenario.given, scenario.num_classes, seed=scenario.seed).responsibilities
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, found)
    return found


Domain = Tuple[np.ndarray, np.ndarray, List[str]]  # features, labels, names of classes


@lru_cache(maxsize=8)
def _read(file: Path) -> Domain:
    with np.load(file) as arrays:
        features, labels = arrays["features"].astype(np.float32), arrays["labels"].astype(np.int64)
        return features, labels, [str(name) for name in arrays["classes"]]


def _domains(folder: Path, source: str, target: str, halves: bool, rng: np.random.Generator) -> Tuple[Domain, Domain]:
    (x, y, classes), other = _read(folder / f"{source}.npz"), _read(folder / f"{target}.npz")
    if not halves:
        return (x, y, classes), other
    first = rng.random(len(x)) < 0.5
    moved = _shifted(x, y, SHIFTS[rng.integers(len(SHIFTS))], rng)
    return (x[first], y[first], classes), (moved[~first], y[~first], classes)


def _shifted(x: np.ndarray, y: np.ndarray, shift: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """Features of another domain: scaled, shifted by class towards mixtures of other classes and as a whole, blurred."""
    means = np.stack([x[y == k].mean(0) for k in range(y.max() + 1)])
    x = x * np.exp(0.3 * rng.standard_normal(x.shape[1]))
    towards = rng.standard_normal((len(means), len(means)))
    towards = towards / np.linalg.norm(towards, axis=1, keepdims=True) @ (means - means.mean(0))
    x = x + shift[0] * towards[y] + shift[1] * means.std(0).mean() * rng.standard_normal(x.shape[1])
    x = x + shift[2] * x.std(0).mean() * rng.standard_normal(x.shape)
    return np.asarray(np.maximum(x, 0), dtype=np.float32)  # features behind a ReLU


def _label_sets(ours: List[str], theirs: List[str], kind: str, rng: np.random.Generator) -> LabelSplit:
    """Shared classes at random; what is left of the common ones is private to one side, of the others a random number."""
    common = [str(name) for name in rng.permutation(ours) if name in theirs]
    private = kind in ("universal", "partial"), kind in ("universal", "open")
    whole = kind == "closed" or len(common) < min(len(ours), len(theirs))  # private classes need none of the common ones
    least, most = len(common) // (2 if whole else 4), len(common) if whole else 2 * len(common) // 3
    number = int(rng.integers(max(2, least), max(2, most) + 1))
    shared, left = common[:number], common[number:]
    half = len(left) // 2 if all(private) else 0
    of_source, of_target = (left[:half], left[half:]) if all(private) else (left, left)
    pools = (of_source + [name for name in ours if name not in theirs], of_target + [name for name in theirs if name not in ours])
    drawn = [[str(name) for name in rng.permutation(pool)[: rng.integers(1, len(pool) + 1)]] if wanted and pool else []
             for pool, wanted in zip(pools, private)]  # fmt: skip
    return LabelSplit(tuple(shared), tuple(drawn[0]), tuple(drawn[1]))


def _rows(domain: Domain, names: Sequence[str], least: int, most: int, rng: np.random.Generator) -> Tuple[np.ndarray, List[str]]:
    """Features and class names of a random number of images, between ``least`` and ``most``, of each class."""
    x, y, classes = domain
    rows = [rng.permutation(np.flatnonzero(y == classes.index(name)))[: rng.integers(least, most + 1)] for name in names]
    return x[np.concatenate(rows)], [name for name, found in zip(names, rows) for _ in found]


def _with_noises(
    group: str, task: str, kind: str, seed: int, noises: Sequence[str], parts: Tuple[Domain, Domain], rng: np.random.Generator
) -> Iterator[Scenario]:
    ours, theirs = parts
    if group == "office31_tasks":
        split, sizes, most = PRESETS["Office31"], (10**6, 10**6), 10**6
    else:
        split, sizes, most = _label_sets(ours[2], theirs[2], kind, rng), SIZES[rng.integers(len(SIZES))], SIZES[-1][1]
    source, named = _rows(ours, split.source_classes, most, most, rng)
    target, held = _rows(theirs, (*split.shared, *split.target_private), *sizes, rng)
    true = np.array([split.source_index(name) for name in named], dtype=np.int64)
    labels = np.array([split.target_index(name) for name in held], dtype=np.int64)
    for noise in noises:
        kind_rate = NOISES[noise]
        given = true if kind_rate is None else draw_labels(true, transition_matrix(*kind_rate, split.num_source), seed)
        yield Scenario(group, task, noise, seed, split, source, given, true, target, labels)
