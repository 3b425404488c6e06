"""Data and backbone as objects: the same run as by names, what its folder says of them, and what stops it."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tllib_ext import NoisyUniDA, RunConfig, compat, extract_features, load_run, train
from tllib_ext.cli.main import main
from tllib_ext.errors import StopRequested, UserError
from tllib_ext.split import LabelSplit
from tllib_ext.training import trainer
from tllib_ext.training.build import build
from tllib_ext.training.objects import given_objects
from tllib_ext.vision.datasets.given import ArrayList, as_image_list, data_of, list_record
from tllib_ext.vision.datasets.imagelist import ImageFolder
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.given import GivenBackbone
from tllib_ext.vision.models.small_cnn import SmallCNN
from tllib_ext.vision.transforms import MEAN, STD

FAST = dict(steps=2, batch_size=6, image_size=32, workers=0, device="cpu", no_report=True, eval_every=2)


class Maps(nn.Module):
    """A backbone of tllib's kind: maps, ``out_features``."""

    out_features = 8

    def __init__(self, width=8):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=4)

    def forward(self, x):
        return self.conv(x).relu()


class OwnList:
    """An image list without a file: keys and a loader."""

    classes = ["cat", "owl", "bee"]

    def __init__(self, size=24, seed=0, classes=None):
        self.samples = [(f"key-{i}", i % len(self.classes)) for i in range(size)]
        self.classes, self.seed = classes or self.classes, seed

    def loader(self, path):
        i = int(path[4:])
        noise = np.random.default_rng(self.seed + i).integers(0, 60, (40, 40, 3))
        return Image.fromarray((noise + np.eye(3)[i % 3] * 180).astype(np.uint8))

    def __len__(self):
        return len(self.samples)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))


def same_bytes(first, second):
    return (first.folder / "model.safetensors").read_bytes() == (second.folder / "model.safetensors").read_bytes()


def test_lists_give_the_run_of_their_names(image_root, tmp_path):
    words = dict(FAST, arch="small_cnn", noise="pair", source="photo", target="sketch")
    named = train(RunConfig(root=str(image_root), log=str(tmp_path / "names"), **words))
    ours = [ImageFolder(image_root / domain) for domain in ("photo", "sketch")]
    theirs = [compat.torchvision().datasets.ImageFolder(str(image_root / domain)) for domain in ("photo", "sketch")]
    for name, pair in (("ours", ours), ("torchvision", theirs)):
        run = train(RunConfig(log=str(tmp_path / name), **words), data=tuple(pair))
        for key in ("os", "h_score", "auroc", "split", "realised_rate", "source", "target"):
            assert run.results[key] == named.results[key]
        found, expected = (torch.cat([p.flatten() for p in r.method.parameters()]) for r in (run, named))
        assert torch.equal(found, expected)
        record = json.loads((run.folder / "config.json").read_text())
        assert record["data"] == "objects" and record["command"] is None and record["root"] == str(image_root)
        assert record["objects"]["source"]["length"] == 24 and record["objects"]["source"]["classes"] == ["blue", "green", "red"]
        assert record["objects"]["source"]["class"].endswith(".ImageFolder") and "predict" not in record["objects"]


def test_a_module_gives_the_run_of_its_name(image_root, tmp_path):
    words = {**FAST, "steps": None, "freeze_backbone": True, "method": "mixture"}
    words = dict(words, root=str(image_root), source="photo", target="sketch")
    named = train(RunConfig(arch="small_cnn", log=str(tmp_path / "name"), **words))
    network = build_backbone("small_cnn")
    run = train(RunConfig(log=str(tmp_path / "object"), **words), backbone=network)
    assert run.predictions.score.tolist() == named.predictions.score.tolist()
    assert run.results["os"] == named.results["os"] and run.results["auroc"] == named.results["auroc"]
    record = json.loads((run.folder / "config.json").read_text())
    assert record["arch"] == "object:tllib_ext.vision.models.small_cnn.SmallCNN" and record["objects"]["backbone"]["weights"]
    files = [str(image_root / "new" / f"{i}.png") for i in range(3)]
    again = load_run(run.folder, backbone=SmallCNN()).predict(files)  # the weights are the run's
    assert run.predict(files).score.tolist() == again.score.tolist() and len(again) == 3


@pytest.mark.parametrize("train_from", ["all", "head"])
def test_a_backbone_of_maps_and_a_list_without_files(train_from, tmp_path):
    network = Maps()
    before = copy.deepcopy(network.state_dict())
    config = RunConfig(log=str(tmp_path / "run"), train_from=train_from, **FAST)
    run = train(config, (OwnList(), OwnList(seed=500)), network)
    assert run.results["split"] == "3/0/0" and run.results["os"] is not None
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items()), "the caller's stays as it was"
    loaded = load_run(run.folder, backbone=Maps())
    x = np.stack([np.asarray(OwnList(seed=500).loader(f"key-{i}")) for i in range(6)])
    assert loaded.predict(x).score.tolist() == run.predict(x).score.tolist()
    assert list(run.predictions.path[:2]) == ["key-0", "key-1"]
    assert not list((tmp_path / "cache").rglob("*.npy")), "what a loader gives is in no cache on disk"


def test_what_a_later_predict_needs(tmp_path, capsys):
    run = train(RunConfig(log=str(tmp_path / "run"), **FAST), (OwnList(), OwnList(seed=5)), Maps())
    record = json.loads((run.folder / "config.json").read_text())
    assert record["objects"]["predict"].startswith("load_run(FOLDER, backbone=MODULE)")
    with pytest.raises(UserError, match=r"a backbone object, test_objects.Maps with 8 features: .*load_run\(folder, backbone"):
        load_run(run.folder)
    with pytest.raises(UserError, match="other layers"):
        load_run(run.folder, backbone=_wide())
    assert main(["predict", str(run.folder), "x.png"]) == 2 and "load_run(folder, backbone=module)" in capsys.readouterr().err
    named = train(RunConfig(log=str(tmp_path / "named"), arch="small_cnn", **FAST), (OwnList(), OwnList(seed=5)))
    with pytest.raises(UserError, match="has its own backbone, small_cnn: leave out backbone"):
        load_run(named.folder, backbone=Maps())
    assert load_run(named.folder).split.num_source == 3


def _wide():
    wide = Maps(16)
    wide.out_features = 16
    return wide


def test_an_interrupted_run_goes_on_with_equal_objects_only(tmp_path, monkeypatch):
    config = RunConfig(log=str(tmp_path / "run"), **{**FAST, "steps": 4, "eval_every": 4}, checkpoint_every=2)
    whole = train(RunConfig(**{**config.to_dict(), "log": str(tmp_path / "whole")}), (OwnList(), OwnList(seed=5)), seeded())
    after = trainer._Training.after_step

    def stop(self, done):
        after(self, done)
        if done == 2:
            raise StopRequested(2, "stopped")

    with monkeypatch.context() as patch:
        patch.setattr(trainer._Training, "after_step", stop)
        with pytest.raises(StopRequested):
            train(config, (OwnList(), OwnList(seed=5)), seeded())
    for data, backbone, message in (
        ((OwnList(30), OwnList(seed=5)), seeded(), "objects source digest .* -> .*; objects source length 24 -> 30"),
        ((OwnList(), OwnList(seed=5)), _wide(), "objects backbone out_features 8 -> 16"),
        ((OwnList(), OwnList(seed=5)), SmallCNN(), "arch object:test_objects.Maps -> object:tllib_ext"),
    ):
        with pytest.raises(UserError, match=f"another, unfinished run .*{message}"):
            train(config, data, backbone)
    run = train(config, (OwnList(), OwnList(seed=5)), seeded())
    assert same_bytes(run, whole)


def seeded():
    torch.manual_seed(3)
    return Maps()


def test_a_record_without_its_objects_says_so(tmp_path):
    run = train(RunConfig(log=str(tmp_path / "run"), **FAST), (OwnList(), OwnList(seed=5)), Maps())
    record = json.loads((run.folder / "config.json").read_text())
    with pytest.raises(UserError, match=r"made with data objects: pass equal ones, train\(config, data=\(source, target\)\)"):
        build(RunConfig.from_record({**record, "arch": None}))


def test_arrays(tmp_path):
    rng = np.random.default_rng(0)
    x, names = rng.normal(size=(40, 5)).astype(np.float32), np.array(["ant", "bee", "cow", "dog"])[np.arange(40) % 4]
    x += 4 * np.eye(5, dtype=np.float32)[np.arange(40) % 4]
    source = names != "dog"
    config = RunConfig(steps=3, batch_size=6, device="cpu", no_report=True, log=str(tmp_path / "run"))
    run = train(config, ((x[source], names[source]), (x, names)))
    assert run.results["split"] == "3/0/1" and run.results["num_images"] == 40 and run.config.arch is None
    assert run.predictions.path[0] == "row:0"
    unlabelled = train(RunConfig(**{**config.to_dict(), "log": str(tmp_path / "new")}), ((x, np.arange(40) % 4), x))
    assert unlabelled.report is None and len(unlabelled.predictions) == 40
    images = rng.integers(0, 255, (12, 20, 20, 3)).astype(np.uint8)
    pictures = RunConfig(log=str(tmp_path / "pictures"), arch="small_cnn", **FAST)
    assert train(pictures, ((images, np.arange(12) % 3), (images, np.arange(12) % 3))).results["num_images"] == 12
    records = [list_record(ArrayList(value, np.arange(12) % 3)) for value in (images, images, 255 - images)]
    assert records[0] == records[1] != records[2]


def test_sizes_and_statistics_of_the_backbone(tmp_path):
    """timm's configuration: images of its size, normalised by its mean and deviation."""
    network = Maps()
    network.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "input_size": (3, 48, 48)}
    given = GivenBackbone(network)
    pixels = torch.rand(2, 3, 16, 16)
    mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (MEAN, STD))
    found, expected = given((pixels - mean) / std), network((pixels - 0.5) / 0.5).mean((2, 3))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert set(given.state_dict()) == {"net.conv.weight", "net.conv.bias"}
    words = {**FAST, "image_size": None}
    parts = build(RunConfig(log=str(tmp_path), **words), given_objects(RunConfig(), (OwnList(), OwnList(seed=1)), network))
    assert parts.data.crop == 48 and parts.config.image_size == 48
    parts = build(RunConfig(log=str(tmp_path), **FAST), given_objects(RunConfig(), (OwnList(), OwnList(seed=1)), network))
    assert parts.data.crop == 32


def test_timms_modules():
    try:
        timm = compat.timm()
    except UserError as error:
        pytest.skip(str(error))
    network = timm.create_model("resnet10t", num_classes=0)
    given = GivenBackbone(network)
    assert given.out_features == network.num_features
    given.check(64)


def test_a_split_for_objects(tmp_path):
    split = LabelSplit(("owl",), ("cat",), ("bee",))
    objects = given_objects(RunConfig(), (OwnList(), OwnList(seed=1)))
    parts = build(RunConfig(log=str(tmp_path), split=split, arch="small_cnn", **FAST), objects)
    assert parts.data.split == split and len(parts.noisy) == 16
    parts = build(RunConfig(log=str(tmp_path), split="2/0/1", arch="small_cnn", **FAST), objects)
    assert str(parts.data.split) == "2/0/1"


def test_features_for_the_estimator(tmp_path):
    Xs, ys = extract_features(OwnList(), Maps(), image_size=32, device="cpu")
    Xt, _ = extract_features(OwnList(seed=500), Maps(), image_size=32, device="cpu")
    assert Xs.shape == (24, 8) and ys[:3].tolist() == ["cat", "owl", "bee"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of 24 samples
        model = NoisyUniDA(steps=2).fit(Xs, ys, Xt)
    assert set(model.predict(Xt).tolist()) <= {"cat", "owl", "bee", -1}
    network = Maps()
    pixels = torch.full((1, 3, 32, 32), 0.2)
    x = (pixels - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    images = np.full((1, 40, 40, 3), 51, np.uint8)  # 51 / 255 = 0.2
    found = extract_features(images, network, image_size=32, device="cpu").X
    np.testing.assert_allclose(found, network(x).mean((2, 3)).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert network.training, "the caller's module keeps its mode"
    assert extract_features(np.zeros((2, 40, 40, 3), np.uint8), network, image_size=32, device="cpu").y is None


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: data_of(OwnList()), "data is OwnList: expected a pair"),
        (lambda: data_of((OwnList(), [1, 2])), "the target is builtins.list without samples, classes, loader"),
        (lambda: data_of((np.zeros((4, 2)), OwnList())), "the source holds 2 features, the target images"),
        (lambda: data_of((np.zeros((4, 2)), np.zeros((4, 2)))), "the source needs labels"),
        (lambda: data_of(((np.zeros((4, 2)), [0, 1]), np.zeros((4, 2)))), "4 rows, but labels of shape"),
        (lambda: ArrayList(np.zeros((4, 2, 2))), "an array of shape"),
        (lambda: ArrayList(np.full((4, 2), np.nan)), "NaN or infinite"),
        (lambda: as_image_list(OwnList(classes=["cat"]), "source"), "the source has the sample .'key-1', 1."),
        (lambda: as_image_list(OwnList(0), "target"), "the target is an empty list"),
        (lambda: GivenBackbone(lambda x: x), "backbone is builtins.function: expected a torch module"),
        (lambda: GivenBackbone(nn.Identity()), "has no out_features"),
        (lambda: GivenBackbone(_wide_lie()).check(32), r"gives an output of shape \(1, 8\) for one image: expected \(1, 16\)"),
        (lambda: GivenBackbone(Maps()).check(2), "does not take images of 2 x 2 pixels"),
        (lambda: _run(arch="resnet18"), "arch='resnet18' and a backbone object"),
        (lambda: _run(scratch=True), "scratch=True and a backbone object"),
        (lambda: _run(data="Office31"), "data='Office31' and data objects"),
        (lambda: _run((np.zeros((9, 2)), np.arange(9) % 3)), "features, which need no backbone"),
        (lambda: extract_features(np.zeros((4, 2)), Maps()), "features already"),
    ],
)
def test_a_wrong_object_is_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def _wide_lie():
    network = Maps()
    network.out_features = 16
    return network


def _run(source=None, **words):
    source = OwnList() if source is None else source
    config = RunConfig(**{**FAST, **words, **({"image_size": None} if isinstance(source, tuple) else {})})
    return train(config, (source, source if isinstance(source, tuple) else OwnList(seed=1)), Maps())
