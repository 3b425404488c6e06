"""Draw docs/images/target_model.png, or measure the ablation of the target model.

    python docs/draw_target_model.py data/transfer_mobilenetv2
    python docs/draw_target_model.py data/transfer_mobilenetv2 --ablation
    python docs/fill.py                                                        writes the table of docs/target_model.md

A part is taken away by replacing a constant or a function of ``tllib_ext.target`` while the model is estimated.
"""

import argparse
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Dict, List, Tuple
from unittest.mock import patch

import numpy as np

from tllib_ext.evaluation.openset import evaluate
from tllib_ext.io import write_json
from tllib_ext.labels import estimate_labels
from tllib_ext.split import LabelSplit
from tllib_ext.target import TargetModel, cosines, embedding, estimate_target, mixture, model
from tllib_ext.vision.datasets.noisy import draw_labels, transition_matrix

DOCS = Path(__file__).resolve().parent
IMAGE, RECORDS = DOCS / "images" / "target_model.png", DOCS / "results" / "target_ablation" / "records.json"
TASKS = (("cifar", "natural"), ("caltech", "natural"), ("natural", "cifar"))
NOISES, SEEDS = ("none", "symmetric:0.45"), range(3)
Task = Tuple[LabelSplit, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def read_task(root: Path, source: str, target: str, noise: str, seed: int) -> Task:
    """Label sets, source features and posterior of their labels, target features and true labels."""
    found = [np.load(root / f"{name}.npz") for name in (source, target)]
    ours, theirs = ([str(name) for name in file["classes"]] for file in found)
    split = LabelSplit(
        [c for c in ours if c in theirs], [c for c in ours if c not in theirs], [c for c in theirs if c not in ours]
    )
    xs, xt = (file["features"].astype(np.float32) for file in found)
    ys = np.array([split.source_index(c) for c in ours])[found[0]["labels"]]
    yt = np.array([split.target_index(c) for c in theirs])[found[1]["labels"]]
    kind, _, rate = noise.partition(":")
    if kind != "none":
        ys = draw_labels(ys, transition_matrix(kind, float(rate), split.num_source), seed)
    return split, xs, estimate_labels(xs, ys, split.num_source, seed=seed).responsibilities, xt, yt


def uncentred(source: np.ndarray, labels: np.ndarray, target: np.ndarray, seed: int = 0) -> embedding.Projection:
    """The projection with the mean of the source subtracted from both domains."""
    found = embedding.project(source, labels, target, seed)
    weight = (labels / np.maximum(labels.sum(0), 1e-9)).mean(1)
    centre = (weight @ embedding.unit(source.astype(np.float32))).astype(np.float32)
    found.target = found.target + (found.centre - centre) @ found.directions
    found.centre = centre
    return found


def fixed(z: np.ndarray, soft: np.ndarray, prototypes: np.ndarray, seed: int) -> List[SimpleNamespace]:
    """In the place of the mixtures: the soft labels."""
    return [SimpleNamespace(posterior=lambda z, k: soft)]


WHITEN = embedding.Projection.whiten
#: name of the part -> what replaces it while it is off.
PARTS: Dict[str, Callable[[], List[object]]] = {
    "whole model": lambda: [],
    "centring per domain": lambda: [patch.object(model, "project", uncentred)],
    "whitening": lambda: [patch.object(embedding, "_SHRINKAGE", 1.0)],
    "neighbourhood": lambda: [patch.multiple(model, NEIGHBOURS=1, SMALLER=())],
    "prior of the null": lambda: [patch.object(cosines, "_SETTINGS", ((1.0, 1e-6),))],
    "second pass": lambda: [patch.object(embedding.Projection, "whiten", lambda self, posterior=None: WHITEN(self))],
    "mixture": lambda: [patch.object(model, "fit_mixtures", fixed)],
    "tie to the source": lambda: [patch.multiple(mixture, TIE=0.0, PULL=0.0)],
    "joining": lambda: [patch.object(mixture, "JOIN", 2.0)],
    "mean over mixtures": lambda: [patch.multiple(mixture, SCALES=(1.0,), TEMPERATURES=(0.02,))],
}


def without(part: str, task: Task, seed: int) -> TargetModel:
    """The target model of a task with one part off."""
    with ExitStack() as stack:
        for change in PARTS[part]():
            stack.enter_context(change)
        return estimate_target(task[1], task[2], task[3], seed)


def ablation(root: Path) -> None:
    """Record OS and H-score of every part taken away, task, noise and seed."""
    records = []
    for (source, target), noise, seed in product(TASKS, NOISES, SEEDS):
        task = read_task(root, source, target, noise, seed)
        for part in PARTS:
            found = without(part, task, seed)
            report = evaluate(task[4], found.labels, found.posterior[:, -1], task[0])
            records.append({"row": part, "task": f"{source}2{target}", "noise": noise.replace(":", " "), "seed": seed,
                            "os": report.os, "h_score": report.h_score})  # fmt: skip
            print(*records[-1].values(), flush=True)
    write_json(RECORDS, {"command": "python docs/draw_target_model.py data/transfer_mobilenetv2 --ablation", "records": records})


def draw(root: Path) -> None:
    """Two views of caltech to natural: the best cosines with their two groups, and the unit sphere in two dimensions."""
    from matplotlib.figure import Figure
    from sklearn.decomposition import PCA

    from tllib_ext.report.style import BLUE, GREY, ORANGE, save

    split, xs, posterior, xt, yt = read_task(root, "caltech", "natural", "none", 0)
    found = estimate_target(xs, posterior, xt)
    place, k = found.predict.embedding, split.num_source
    z = place(xt)
    best = (cosines.local_means(z) @ place.prototypes.T).max(1)
    true, called = yt == k, found.labels == k
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    bins = np.linspace(best.min(), best.max(), 50)
    for mask, colour, name in ((~true, BLUE, "known"), (true, ORANGE, "unknown")):
        left.hist(best[mask], bins, color=colour, alpha=0.7, label=f"{name} (true)")
    left.set(xlabel="best cosine of the neighbourhood with a source class", ylabel="target images")
    left.set_title("two groups without a threshold", loc="left")
    left.legend(frameon=False)
    held = [c for c in range(k) if c not in found.absent]
    chosen = np.random.default_rng(0).permutation(len(z))[:1200]
    flat = PCA(2, random_state=0).fit(np.concatenate([z[chosen], place.prototypes[held]]))
    for mask, colour, name in ((~called, BLUE, "called known"), (called, ORANGE, "called unknown")):
        points = flat.transform(z[chosen][mask[chosen]])
        right.scatter(points[:, 0], points[:, 1], s=4, color=colour, alpha=0.5, label=name)
    corners = flat.transform(place.prototypes[held])
    right.scatter(corners[:, 0], corners[:, 1], s=60, marker="*", color=GREY, edgecolor="black", label="source class", zorder=3)
    for c, (x, y) in zip(held, corners):
        right.annotate(split.source_classes[c], (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    right.set(xticks=[], yticks=[], title="")
    right.set_title(f"{found.share:.0%} ± {found.share_std:.0%} unknown in {found.num_groups} groups", loc="left")
    right.legend(frameon=False, fontsize=8, markerscale=1.5)
    save(figure, IMAGE)


def main() -> None:
    """Draw, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with cifar.npz, natural.npz and caltech.npz")
    parser.add_argument("--ablation", action="store_true", help=f"write {RECORDS.name} of the ablation, draw nothing")
    args = parser.parse_args()
    if args.ablation:
        ablation(args.root)
    else:
        draw(args.root)


if __name__ == "__main__":
    main()
