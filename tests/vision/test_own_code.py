"""Backbones and data sets of the user's own, by ``package.module:name``, from the command line to predictions."""

import csv
import json

import pytest
from conftest import ROOT

from tllib_ext.cli.main import main
from tllib_ext.errors import UserError
from tllib_ext.training.saved_run import load_run
from tllib_ext.vision.datasets.catalog import open_data
from tllib_ext.vision.models.backbones import build_backbone

RUN = "-s photo -t sketch --image-size 32 -b 4 --steps 2 -j 0 --device cpu --no-report".split()


@pytest.fixture(autouse=True)
def own_code(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))


def test_a_backbone_is_called_with_what_it_takes():
    assert build_backbone("own_code:Tiny").out_features == 6
    weight = build_backbone("own_code:tiny").body[0].weight
    assert (weight == 1).all() and not (build_backbone("own_code:tiny", None).body[0].weight == 1).all()


@pytest.mark.parametrize(
    "name, message",
    [
        ("own_code:broken", "backbone 'own_code:broken' cannot be built: RuntimeError: no such layer"),
        ("own_code:no_width", "expected a torch module with out_features"),
        ("own_code:absent", "cannot be imported: AttributeError"),
        ("no_such_module:Net", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_backbones_that_cannot_be_used_are_one_line(name, message):
    with pytest.raises(UserError, match=message):
        build_backbone(name)


@pytest.mark.parametrize("extra", [[], ["--freeze-backbone"]])
def test_a_run_with_an_own_backbone_and_its_predictions(image_root, tmp_path, capsys, extra):
    log = tmp_path / "run"
    words = ["train", str(image_root), *RUN, "-a", "own_code:tiny", "-m", "source_only", *extra, "--log", str(log)]
    assert main(words) == 0, capsys.readouterr().err
    assert json.loads((log / "config.json").read_text())["arch"] == "own_code:tiny"
    with pytest.raises(UserError, match="needs code of yours, arch own_code:tiny: allow it .*--import-code"):
        load_run(log)
    assert len(load_run(log, import_code=True).predict(image_root / "sketch")) == 24
    out = tmp_path / "p.csv"
    assert main(["predict", str(log), str(image_root / "sketch"), "--out", str(out), "--import-code"]) == 0
    stored = {row["path"]: row["predicted"] for row in csv.DictReader(open(log / "predictions.csv"))}
    assert [row["predicted"] for row in csv.DictReader(open(out))] == list(stored.values())


@pytest.mark.parametrize("name", ["Pictures", "OneFolder", "Builder"])
def test_data_sets_in_every_form(name, image_root, tmp_path):
    (image_root / "new").rename(tmp_path / "new")  # of no classes
    try:
        data, twin = (open_data(str(image_root), d, "photo", "sketch") for d in (f"own_code:{name}", "folder"))
    finally:
        (tmp_path / "new").rename(image_root / "new")
    assert [path for path, _ in data.source.samples] == [path for path, _ in twin.source.samples]
    assert data.split == twin.split and len(data.target) == 24


def test_a_run_on_an_own_data_set(image_root, tmp_path, capsys):
    words = ["train", str(image_root), *RUN, "-d", "own_code:Pictures", "-a", "small_cnn", "--log", str(tmp_path / "run")]
    assert main(words) == 0, capsys.readouterr().err
    assert len((tmp_path / "run" / "predictions.csv").read_text().splitlines()) == 25


def test_data_sets_that_cannot_be_used_are_one_line(image_root):
    with pytest.raises(UserError, match="own_code:Pictures cannot open 'photo': FileNotFoundError"):
        open_data(str(image_root / "photo"), "own_code:Pictures", "photo", "sketch")
    with pytest.raises(UserError, match="made a Unfinished without classes, loader"):
        open_data(str(image_root), "own_code:Unfinished", "photo", "sketch")
    with pytest.raises(UserError, match="unknown domain 'music'"):
        open_data(str(image_root), "own_code:Pictures", "photo", "music")


@pytest.mark.parametrize("key, value", [("arch", "own_code:tiny"), ("data", "own_code:Pictures"), ("method", "own_code:Tiny")])
def test_a_file_does_not_choose_code(tmp_path, capsys, key, value):
    (tmp_path / "x.yaml").write_text(f"{key}: {value}\n")
    assert main(["train", "-c", str(tmp_path / "x.yaml"), "--check"]) == 2
    assert "a file may not choose code to import" in capsys.readouterr().err
