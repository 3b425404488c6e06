"""A folder in which the names of the pages exist: small Office-31 and its features, photographs, weights, finished runs."""

import csv
import sys

import numpy as np
import pytest
import torch
from conftest import load_example
from PIL import Image

from tllib_ext.cli.parser import run_main
from tllib_ext.vision.datasets.benchmarks import BENCHMARKS
from tllib_ext.vision.models.backbones import build_backbone

DEVELOPMENT = {  # as in data/transfer_mobilenetv2
    "cifar": "airplane car bird cat deer dog frog horse ship truck".split(),
    "natural": "airplane car cat dog flower fruit motorbike person".split(),
    "caltech": "accordion airplane binocular car flower motorbike person".split(),
}


def photo(path, colour, rng):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((colour + rng.integers(0, 40, (12, 12, 3))).astype(np.uint8)).save(path)


def save_features(file, names, each, rng):
    file.parent.mkdir(parents=True, exist_ok=True)
    labels, features = np.repeat(np.arange(len(names)), each), rng.normal(size=(each * len(names), 8)).astype(np.float32)
    paths = np.array([f"{names[k]}/{i}.jpg" for i, k in enumerate(labels)])
    np.savez(file, features=features, labels=labels, classes=np.array(names), paths=paths)
    return paths, labels


def make_world(root):
    """Write it below ``root``."""
    rng = np.random.default_rng(0)
    office, names = root / "data" / "office31", BENCHMARKS["Office31"].classes
    colours = rng.integers(0, 200, (len(names), 3))
    (office / "image_list").mkdir(parents=True)
    for domain, stem in BENCHMARKS["Office31"].lists.items():
        paths = [f"{domain}/images/{name}/{i}.png" for name in names for i in range(2)]
        for path, colour in zip(paths, colours.repeat(2, 0)):
            photo(office / path, colour, rng)
        lines = [f"{path} {k // 2}" for k, path in enumerate(paths)]
        (office / "image_list" / f"{stem}.txt").write_text("\n".join(lines) + "\n")
        for folder in ("DIR", "data/office31_resnet50"):
            save_features(root / folder / f"{domain}.npz", names, 2, rng)
    for domain, classes in DEVELOPMENT.items():
        for folder in ("data", "data/transfer_mobilenetv2"):
            paths, labels = save_features(root / folder / f"{domain}.npz", classes, 8, rng)
            if domain == "cifar":
                rows = [f"{path},{classes[k]},{classes[(k + i % 2) % 10]}" for i, (path, k) in enumerate(zip(paths, labels))]
                (root / folder / "cifar_human_labels.csv").write_text("\n".join(["path,clean,worse", *rows]) + "\n")
    for number, name in enumerate(["mouse", "mug", "pen"]):
        for i in range(14):
            photo(root / "my_photos" / "labelled" / name / f"{i}.png", colours[number], rng)
    for i in range(40):
        photo(root / "my_photos" / "new" / f"{i}.png", colours[i % 4], rng)
    for number, name in enumerate(["more_photos/a.png", "photos/a.png", "more/7.jpg", "one.jpg"]):
        photo(root / name, colours[number], rng)
    rows = ["index,label,predicted,score,top1", "0,mug,mug,0.1,mug", "1,mouse,unknown,0.9,bike", "2,unknown,unknown,0.8,mug"]
    (root / "theirs.csv").write_text("\n".join(rows) + "\n")
    torch.save(build_backbone("mobilenet_v2", None).state_dict(), root / "mobilenet_v2.pth")
    runs = {"a": "DIR -s A -t D --noise pair", "photos": "my_photos -s labelled -t new -a small_cnn --image-size 32"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for log, words in {**runs, "my_run": runs["a"], "b": runs["a"], "office31/x": runs["a"]}.items():
            argv = f"x {words} --steps 2 --no-report --log runs/{log}".split()
            patch.setattr(sys, "argv", argv)
            assert run_main(load_example("noisy_unida").main) == 0
    with open(root / "runs" / "my_run" / "predictions.csv", newline="") as stream:
        paths = [row["path"] for row in csv.DictReader(stream)][:3]
    (root / "answers.csv").write_text("".join(f"{row}\n" for row in ["path,label", *(f"{path},unknown" for path in paths)]))
    return root
