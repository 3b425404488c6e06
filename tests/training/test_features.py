"""tllib-ext features: the files of frozen features, from any backbone."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tllib_ext import compat
from tllib_ext.cli.main import main
from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.saved_run import load_run
from tllib_ext.vision.models.inputs import image_input
from tllib_ext.vision.transforms import MEAN, STD

WORDS = ["-a", "small_cnn", "--image-size", "16", "-j", "0", "--device", "cpu"]


def usable(package):
    try:
        return bool(package())
    except compat.Missing:
        return False


needs_timm = pytest.mark.skipif(not usable(compat.timm), reason="timm is not installed")


def test_the_files_hold_what_a_frozen_run_sees(image_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "features"
    assert main(["features", str(image_root), "--out", str(out), *WORDS]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["new.npz", "photo.npz", "sketch.npz"]
    arrays = {name: dict(np.load(out / f"{name}.npz")) for name in ("new", "photo", "sketch")}
    assert "labels" not in arrays["new"] and len(arrays["new"]["features"]) == 6
    assert arrays["photo"]["classes"].tolist() == ["blue", "green", "red"]
    assert arrays["photo"]["paths"][0] == "photo/blue/0.png" and arrays["photo"]["labels"].tolist() == 8 * [0] + 8 * [1] + 8 * [2]

    run = dict(source="photo", target="sketch", batch_size=6, device="cpu", workers=0)
    frozen = build(RunConfig(root=str(image_root), arch="small_cnn", image_size=16, freeze_backbone=True, **run))
    stored = build(RunConfig(root=str(out), **run))
    for ours, theirs in ((stored.source, frozen.source), (stored.target, frozen.target)):
        torch.testing.assert_close(ours.features, theirs.features)
        assert ours.view.targets.tolist() == theirs.view.targets.tolist()


def test_the_cache_of_features_is_that_of_runs(image_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    assert main(["features", str(image_root), "--out", str(tmp_path / "features"), *WORDS]) == 0
    made = []
    monkeypatch.setattr("tllib_ext.training.frozen.features_of", lambda *words: made.append(words[3]))
    settings = dict(source="photo", target="sketch", batch_size=6, device="cpu", workers=0, arch="small_cnn", image_size=16)
    build(RunConfig(root=str(image_root), freeze_backbone=True, **settings))
    assert main(["audit", str(image_root / "photo"), "--out", str(tmp_path / "audit"), *WORDS]) == 0
    assert made == []  # neither a run nor an audit computes them again


@pytest.mark.parametrize("root, name", [("photo", "photo"), ("new", "new"), ("single", "photo")])
def test_a_folder_may_be_a_single_domain(image_root, tmp_path, monkeypatch, root, name):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    shutil.copytree(image_root / "photo", tmp_path / "single" / "photo")
    folder = tmp_path / "single" if root == "single" else image_root / root
    assert main(["features", str(folder), "--out", str(tmp_path / "out"), *WORDS]) == 0
    (file,) = (tmp_path / "out").iterdir()
    arrays = dict(np.load(file))
    assert file.name == f"{name}.npz" and len(arrays["features"]) == (6 if name == "new" else 24)
    assert arrays["paths"][0].startswith(f"{name}/") and ("labels" in arrays) == (name == "photo")


def test_one_labelled_domain_and_one_without_labels_are_enough(image_root, tmp_path, capsys):
    for name in ("photo", "new"):
        shutil.copytree(image_root / name, tmp_path / "mine" / name)
    (tmp_path / "mine" / "new" / "notes.txt").write_text("not an image")
    assert main(["features", str(tmp_path / "mine"), "--out", str(tmp_path / "out"), *WORDS]) == 0
    photo, new = (dict(np.load(tmp_path / "out" / f"{name}.npz")) for name in ("photo", "new"))
    assert len(photo["labels"]) == 24 and "labels" not in new and len(new["features"]) == 6
    assert capsys.readouterr().out.count("1 file passed over: 1 .txt. Passed over: notes.txt") == 1


def test_processes_that_decode_end_with_their_domain(image_root, tmp_path):
    words = [*WORDS[:4], "-j", "2", "--device", "cpu", "-b", "2", "--out", str(tmp_path / "out")]
    code = "import gc, tllib_ext.training.features; from tllib_ext.cli.main import main; gc.set_threshold(50); main()"
    command = [sys.executable, "-c", code]
    done = subprocess.run([*command, "features", str(image_root), *words], capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_bad_input_leaves_no_file(image_root, feature_root, tmp_path, capsys):
    out = tmp_path / "out"
    for words, message in (
        ([str(feature_root), *WORDS], "expected a folder of images"),
        ([str(image_root), "-a", "small_cnn", "--weights", "nowhere.pth", "-j", "0"], "no weights file nowhere.pth"),
        ([str(image_root), "-a", "dinov2-smal"], "dinov2-small"),
    ):
        assert main(["features", *words, "--out", str(out)]) == 2
        err = capsys.readouterr().err
        assert message in err and len(err.splitlines()) == 1 and not out.exists()
    out.mkdir()
    (out / "photo.npz").write_bytes(b"mine")
    assert main(["features", str(image_root), "--out", str(out), *WORDS]) == 2
    assert "--overwrite" in capsys.readouterr().err and (out / "photo.npz").read_bytes() == b"mine"


@needs_timm
def test_a_backbone_has_its_own_size_and_normalisation():
    assert image_input("resnet50") == image_input(None) == (224, MEAN, STD)
    assert image_input("timm:vit_small_patch14_dinov2").size == 518 and image_input("dinov2-small").size == 224
    assert image_input("vit-small").mean == (0.5, 0.5, 0.5) == image_input("timm:vit_small_patch16_224").std
    assert image_input("timm:no_such_network") == (224, MEAN, STD)  # building it is the error


@needs_timm
def test_the_normalisation_is_used_and_saved(image_root):
    settings = dict(root=str(image_root), source="photo", target="sketch", weights="none", image_size=32, device="cpu", workers=0)
    parts = build(RunConfig(arch="timm:vit_tiny_patch16_224", batch_size=6, **settings))
    assert parts.model_record()["image"]["mean"] == (0.5, 0.5, 0.5)
    _, x = next(parts.target.in_order(4))
    assert x.min() >= -1 and x.max() <= 1
    plain = build(RunConfig(arch="small_cnn", batch_size=6, **settings))
    assert "mean" not in plain.record()["image"]  # as earlier releases wrote it
    with pytest.raises(Exception, match="image_size=30: the backbone has patches of 16 x 16 pixels; try image_size=32"):
        build(RunConfig(arch="timm:vit_tiny_patch16_224", batch_size=6, **{**settings, "image_size": 30}))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["resnet50", "tllib:resnet50", "dinov2-small", "convnext-tiny"])
def test_real_backbones_take_a_step_are_saved_and_loaded(arch, image_root, tmp_path, capsys):
    package = {"resnet50": compat.torchvision, "tllib:resnet50": compat.tllib}.get(arch, compat.timm)
    if not usable(package):
        pytest.skip(f"no {package.__name__} on this machine")
    log = tmp_path / "run"
    words = ["train", str(image_root), "-s", "photo", "-t", "sketch", "-m", "divergence", "-a", arch, "--weights", "none",
             "--steps", "1", "-b", "3", "-j", "0", "--device", "cpu", "--hp", "warmup=0", "--no-report",
             "--log", str(log)]  # fmt: skip
    assert main(words) == 0, capsys.readouterr().err
    run = load_run(log)
    assert run.crop == 224
    pixels = np.asarray(Image.open(image_root / "photo" / "red" / "0.png").resize((run.resize, run.resize)))
    assert np.isfinite(run.predict_pixels(torch.from_numpy(pixels.copy())[None]).probs).all()
