"""Draw docs/images/target_model.png: the resemblance of target images to their class, and the decisions on the sphere.

python docs/draw_target_model.py data/transfer_mobilenetv2
"""

import argparse
from pathlib import Path
from typing import Tuple

import numpy as np

from tllib_ext.labels import estimate_labels
from tllib_ext.split import LabelSplit
from tllib_ext.target import estimate_target
from tllib_ext.target.graph import resemblance
from tllib_ext.vision.datasets.noisy import draw_labels, transition_matrix

IMAGE = Path(__file__).resolve().parent / "images" / "target_model.png"
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


def draw(root: Path) -> None:
    """Two views of caltech to natural: the resemblance to a known class, and the unit sphere in two dimensions."""
    from matplotlib.figure import Figure
    from sklearn.decomposition import PCA

    from tllib_ext.report.style import BLUE, GREY, ORANGE, save

    split, xs, posterior, xt, yt = read_task(root, "caltech", "natural", "none", 0)
    found = estimate_target(xs, posterior, xt)
    place, k = found.predict.embedding, split.num_source
    z = place(xt)
    best = resemblance(z, place.prototypes).value
    true, called = yt == k, found.labels == k
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    bins = np.linspace(best.min(), best.max(), 50)
    for mask, colour, name in ((~true, BLUE, "known"), (true, ORANGE, "unknown")):
        left.hist(best[mask], bins, color=colour, alpha=0.7, label=f"{name} (true)")
    left.set(xlabel="resemblance to a source class (neighbours of neighbours)", ylabel="target images")
    left.set_title("two groups", loc="left")
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
    right.set_title(f"{found.share:.0%} unknown in {found.num_groups} groups", loc="left")
    right.legend(frameon=False, fontsize=8, markerscale=1.5)
    save(figure, IMAGE)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with cifar.npz, natural.npz and caltech.npz")
    draw(parser.parse_args().root)


if __name__ == "__main__":
    main()
