"""Training from a stage of the backbone: equal to training without a cache, whatever keeps the maps."""

import json
import shutil

import numpy as np
import pytest
import torch
from together import Together
from torch import nn

from tllib_ext.cli.main import main
from tllib_ext.cli.parser import Parser, add_run_arguments, parse_run
from tllib_ext.errors import UserError
from tllib_ext.methods import METHODS
from tllib_ext.training import trainer as run_module
from tllib_ext.training.budget import measure
from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.doctor import Workload, examine
from tllib_ext.training.earlier import upgrade
from tllib_ext.training.predict import features_of
from tllib_ext.training.saved_run import load_run
from tllib_ext.training.trainer import train

WORDS = "-d folder -s photo -t sketch -a small_cnn --image-size 32 -b 4 --noise pair --no-report -j 0 --device cpu".split()
STAGE = "stages.1"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "maps"


def words(root, log, *more):
    return [str(word) for word in (root, *WORDS, "--log", log, *more)]


def built(*args):
    parser = Parser()
    add_run_arguments(parser)
    return build(parse_run(parser, words(*args)))


def trained(*args):
    """Files and weights at the end of a run."""
    parts = built(*args)
    folder = train(parts).folder
    return (folder / "predictions.csv").read_bytes(), {name: value.clone() for name, value in parts.method.state_dict().items()}


class Whole(nn.Module):
    """The same training without any cache: the whole network on images in every pass, its first part in evaluation mode."""

    def __init__(self, below, rest):
        super().__init__()
        self.below, self.rest, self.out_features, self.lr_mult = below, rest, rest.out_features, rest.lr_mult

    def train(self, mode=True):
        super().train(mode)
        self.below.eval()
        return self

    def forward(self, x):
        return self.rest(self.below(x).float())


@pytest.mark.parametrize("method", ["divergence", "credo", "source_only", "dance_sel"])
def test_the_same_bytes_as_without_a_cache(image_root, tmp_path, method):
    staged_words = ("-m", method, "--steps", 6, "--train-from", STAGE)
    if method == "credo":
        staged_words += ("--hp", "fits=2")  # no cosine reaches it: credo trains, whatever it thinks of these features
    predictions, weights = trained(image_root, tmp_path / "cached", *staged_words)

    parts = built(image_root, tmp_path / "plain", "-m", method, "--steps", 6)
    staged = built(image_root, tmp_path / "unused", *staged_words, "--cache", "off")
    before = {name: value.clone() for name, value in staged.method.state_dict().items()}
    whole = Whole(staged.frozen, staged.method.backbone)
    parts.method = METHODS.get(method)(whole, parts.data.split, staged.method.hparams)
    parts.method.load_state_dict(
        {**parts.method.state_dict(), **{name.replace("backbone.", "backbone.rest."): value
                                        for name, value in staged.method.state_dict().items()}})  # fmt: skip
    parts.source.train_augment = False  # the centre, as in a cache of one view
    folder = train(parts).folder
    assert (folder / "predictions.csv").read_bytes() == predictions
    plain = {name.replace("backbone.rest.", "backbone."): value for name, value in parts.method.state_dict().items()}
    for name, value in weights.items():
        assert torch.equal(plain[name], value), name
    assert any(not torch.equal(before[name], value) for name, value in weights.items() if name.startswith("backbone."))


@pytest.mark.parametrize("views", [1, 3])
def test_the_result_does_not_depend_on_where_maps_are_kept(image_root, tmp_path, cache, views):
    more = ("-m", "divergence", "--steps", 5, "--train-from", STAGE, "--views", views, "--target-aug", "train")
    runs = {mode: trained(image_root, tmp_path / mode, *more, "--cache", mode) for mode in ("disk", "ram", "off")}
    again = trained(image_root, tmp_path / "again", *more)  # auto: reads the files
    assert len(list(cache.glob("*.npy"))) == 2
    for predictions, weights in (*runs.values(), again):
        assert predictions == runs["disk"][0]
        assert all(torch.equal(value, runs["disk"][1][name]) for name, value in weights.items())


def test_views_are_the_centre_its_mirror_image_and_crops(image_root, tmp_path):
    parts = built(image_root, tmp_path / "run", "--train-from", STAGE, "--views", 4)
    pixels, augment = parts.source.images()
    index = np.arange(3)
    rows = pixels.rows(index)
    views = [augment.view(rows, np.full(3, view), index) for view in range(4)]
    assert torch.equal(views[0], augment.centre(rows)) and torch.equal(views[1], views[0].flip(3))
    assert not torch.equal(views[2], views[3]) and not torch.equal(views[2], views[0])
    mixed = augment.view(rows, np.array([3, 0, 2]), index)
    assert all(torch.equal(mixed[i], views[view][i]) for i, view in enumerate((3, 0, 2)))
    picked = np.concatenate([augment.pick(4, step, np.arange(50)) for step in range(20)])
    assert np.bincount(picked, minlength=4).min() > 200  # of 1000
    frozen = parts.frozen(torch.cat(views)).float().split(3)
    assert all(torch.equal(parts.source._maps.rows(index, np.full(3, view)), frozen[view]) for view in range(4))
    assert parts.target._maps.maps.shape[1] == 1  # the target is not augmented


def test_the_size_is_said_before(image_root, tmp_path, capsys):
    built(image_root, tmp_path / "run", "--train-from", STAGE, "--views", 2, "--cache", "ram")
    assert "photo: 24 images x 2 views x 24x16x16 at stages.1, 0.59 MB in float16, kept in memory" in capsys.readouterr().out


def test_damaged_entries_are_made_again(image_root, tmp_path, cache, capsys):
    more = ("-m", "source_only", "--steps", 3, "--train-from", STAGE)
    expected = trained(image_root, tmp_path / "first", *more)[0]
    whole = {file: file.read_bytes() for file in cache.glob("*.npy")}
    for file, content in whole.items():
        file.write_bytes(content[:-9] + bytes([content[-9] ^ 255]) + content[-8:])
    assert trained(image_root, tmp_path / "second", *more)[0] == expected
    assert capsys.readouterr().out.count("1 of 24 entries are damaged and made again") == 2
    assert {file: file.read_bytes() for file in whole} == whole
    for number, broken in enumerate((b"", b"no array", next(iter(whole.values()))[:-100])):
        next(iter(whole)).write_bytes(broken)
        assert trained(image_root, tmp_path / f"broken{number}", *more)[0] == expected
        assert {file: file.read_bytes() for file in whole} == whole


def test_threads_that_decode_change_nothing(image_root, tmp_path, cache):
    more = ("-m", "source_only", "--steps", 3, "--train-from", STAGE)
    expected = trained(image_root, tmp_path / "first", *more)
    for number in range(2):  # extracts, then reads
        if number == 0:
            shutil.rmtree(cache)
        predictions, weights = trained(image_root, tmp_path / f"{number}", *more, "-j", 1)
        assert predictions == expected[0]
        assert all(torch.equal(value, expected[1][name]) for name, value in weights.items())


class Died(BaseException):
    """Stands for SIGKILL."""


def test_a_dead_run_goes_on_to_the_same_bytes(image_root, tmp_path, monkeypatch, capsys):
    more = ("-m", "credo", "--steps", 8, "--checkpoint-every", 3, "--train-from", STAGE, "--views", 2)
    expected = trained(image_root, tmp_path / "reference", *more)
    with monkeypatch.context() as patch:
        whole = run_module._Training.evaluate
        patch.setattr(run_module._Training, "evaluate", lambda self, done: die() if done == 5 else whole(self, done))
        with pytest.raises(Died):
            trained(image_root, tmp_path / "run", *more)
    predictions, weights = trained(image_root, tmp_path / "run", *more)
    assert "going on at step" in capsys.readouterr().out and predictions == expected[0]
    assert all(torch.equal(value, expected[1][name]) for name, value in weights.items())


def die():
    raise Died


def run_and_weights(*args):
    predictions, weights = trained(*args)
    return predictions, {name: value.numpy() for name, value in weights.items()}


@pytest.mark.slow
def test_two_processes_and_one_end_alike(image_root, tmp_path, cache):
    more = ("-m", "source_only", "--steps", 5, "--train-from", STAGE)
    _, alone = run_and_weights(image_root, tmp_path / "one", *more)
    files = {file.name: file.read_bytes() for file in cache.glob("*.npy")}
    shutil.rmtree(cache)
    (_, first), (_, second) = Together(2, run_and_weights, image_root, tmp_path / "two", *more, "-b", "2").results()
    assert {file.name: file.read_bytes() for file in cache.glob("*.npy")} == files
    for name in alone:
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], alone[name], rtol=0, atol=1e-4)


def test_freeze_backbone_is_from_the_head(image_root, tmp_path):
    old = built(image_root, tmp_path / "a", "--freeze-backbone").record()
    new = built(image_root, tmp_path / "b", "--train-from", "head").record()
    assert old["train_from"] == new["train_from"] == "head" and old["freeze_backbone"] and new["freeze_backbone"]
    assert {**old, "log": "", "command": ""} == {**new, "log": "", "command": ""}
    assert built(image_root, tmp_path / "c").record()["train_from"] == "all"


@pytest.mark.parametrize("more, message", [
    (["--train-from", "layer4"], "train_from='layer4': .*known: all, feature.1, feature.2, head, stages.1, stages.2"),
    (["--train-from", STAGE, "--freeze-backbone"], "leave one of them out"),
    (["--views", 2], "give train_from, e.g. layer4"),
    (["--backbone-norm", "fixed", "--train-from", "head"], "no part of a backbone is trained"),
    (["--views", 0, "--train-from", STAGE], "views 0: expected a whole number"),
    (["--train-from", STAGE, "-m", "mixture", "--steps", 5], "mixture is not trained"),
])  # fmt: skip
def test_contradictions_are_errors(image_root, tmp_path, more, message):
    with pytest.raises(UserError, match=message):
        built(image_root, tmp_path / "run", *more)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more, moves", [((), False), (("--backbone-norm", "batch"), True)])
def test_statistics_of_batch_norm_are_those_of_pretraining(image_root, tmp_path, more, moves):
    parts = built(image_root, tmp_path / "run", "-m", "divergence", "--steps", 3, "--train-from", STAGE, *more)
    before = {name: value.clone() for name, value in parts.method.backbone.state_dict().items()}
    train(parts)
    for name, value in parts.method.backbone.state_dict().items():
        statistics = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        assert torch.equal(value, before[name]) != (moves or not statistics), name
    whole = built(image_root, tmp_path / "all", "--steps", 3, *more)
    assert whole.method.train().backbone.stages[0][2].training  # as before
    fixed = built(image_root, tmp_path / "fixed", "--steps", 3, "--backbone-norm", "fixed").method.train()
    assert fixed.backbone.training and not fixed.backbone.stages[0][2].training


def test_features_have_no_stages(feature_root):
    with pytest.raises(UserError, match="leave out arch, train_from and image_size"):
        build(RunConfig(root=str(feature_root), source="alpha", target="beta", train_from="layer4"))


def test_records_of_earlier_releases():
    assert upgrade({"arch": "resnet50", "freeze_backbone": True})["train_from"] == "head"
    assert upgrade({"arch": "resnet50", "freeze_backbone": False})["train_from"] == "all"
    assert "train_from" not in upgrade({"arch": None, "freeze_backbone": False})


def test_predict_labels_what_the_run_labelled(image_root, tmp_path):
    assert main(["train", *words(image_root, tmp_path / "run", "-m", "credo", "--steps", 4, "--train-from", STAGE)]) == 0
    run = load_run(tmp_path / "run")
    assert run.frozen is not None and not any(p.requires_grad for p in run.frozen.parameters())
    assert main(["predict", str(tmp_path / "run"), str(image_root / "sketch"), "--out", str(tmp_path / "new.csv")]) == 0
    rows = [line.split(",") for line in (tmp_path / "new.csv").read_text().splitlines()[1:]]
    expected = [line.split(",") for line in (tmp_path / "run" / "predictions.csv").read_text().splitlines()[1:]]
    assert sorted(row[1:2] + row[3:] for row in rows) == sorted(row[1:2] + row[3:] for row in expected)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["train_from"] == STAGE and not config["freeze_backbone"]


def test_features_of_a_trained_stage(image_root, tmp_path, capsys):
    parts = built(image_root, tmp_path / "run", "-m", "source_only", "--steps", 4, "--train-from", STAGE)
    train(parts)
    moved = ["features", str(image_root), "--out", str(tmp_path / "moved"), "--run", str(tmp_path / "run"), "-j", "0"]
    assert main(moved) == 0
    expected = features_of(parts.method.backbone, parts.target, 64).numpy()
    found = np.load(tmp_path / "moved" / "sketch.npz")["features"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert main([*moved, "--overwrite", "-a", "resnet18"]) == 2
    assert "leave out arch, weights and image_size" in capsys.readouterr().err


def test_a_method_without_training_sees_the_same_features(image_root, tmp_path):
    head, stage = (built(image_root, tmp_path / name, "-m", "mixture", "--train-from", name) for name in ("head", STAGE))
    with torch.no_grad():
        features = torch.cat([stage.method.backbone.eval()(x) for _, x in stage.target.in_order(8)])
    torch.testing.assert_close(features, head.target.features, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("arch, stage, size", [("small_cnn", STAGE, 32), ("resnet18", "layer4", 64), ("small_cnn", "head", 32)])
def test_budget_and_doctor(arch, stage, size):
    part, whole = (measure("divergence", arch, size, 8, train_from=name) for name in (stage, "all"))
    assert part.forwards == whole.forwards == 7 and 0 < part.flops < whole.flops and part.peak < whole.peak
    if arch == "small_cnn":
        found = examine("divergence", torch.device("cpu"), Workload(batch=6, steps=2, train_from=stage), torch.device("cpu"))
        assert found.agrees, found
