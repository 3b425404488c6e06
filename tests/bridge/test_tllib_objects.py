"""tllib's data sets and backbones as objects of a run: the stand-in's, and the real ones where they are."""

import json
import sys

import numpy as np
import pytest
import standin
import torch
from conftest import SHARED
from test_compat import REAL

from tllib_ext import RunConfig, compat, load_run, train
from tllib_ext.errors import UserError
from tllib_ext.tllib import noisy, register, universal

checkout, office31, tllib = standin.checkout, standin.office31, standin.tllib
OFFICE31 = SHARED / "data" / "office31"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))


def config(tmp_path, name="run", **words):
    fast = dict(steps=1, batch_size=8, image_size=32, workers=0, device="cpu", no_report=True)
    return RunConfig(**{**fast, **words, "log": str(tmp_path / name)})


def test_a_noisy_universal_pair_is_the_run_with_that_noise(tllib, office31, tmp_path):
    """The classes of the bridge carry noise and label sets; the run draws and splits nothing more."""
    register()
    from tllib.vision import datasets, models

    source = noisy(universal(datasets.Office31, "source"), "pair", 0.3)(root=str(office31), task="A")
    target = universal(datasets.Office31, "target")(root=str(office31), task="D")
    torch.manual_seed(0)
    backbone = models.resnet18()
    given = train(config(tmp_path, drop_rate=0.3), (source, target), backbone)
    plain = tuple(datasets.Office31(str(office31), task) for task in "AD")
    drawn = train(config(tmp_path, "drawn", noise="pair", rate=0.3, drop_rate=0.3), plain, backbone)
    assert given.results["split"] == "10/10/1" and drawn.results["split"] == "10/10/11"
    for key in ("os", "h_score", "auroc", "num_images"):
        assert given.results[key] == drawn.results[key], key
    ours, theirs = ([p for p in run.method.parameters()] for run in (given, drawn))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert drawn.results["realised_rate"] == source.is_flipped.mean()


def test_another_frozen_backbone_is_another_run(tllib, office31, tmp_path, monkeypatch):
    """Its weights are in no checkpoint: a run goes on with equal ones only."""
    from tllib.vision import datasets, models

    from tllib_ext.training import trainer

    pair = tuple(datasets.Office31(str(office31), task) for task in "AD")
    settings = config(tmp_path, freeze_backbone=True, checkpoint_every=1, steps=2)
    monkeypatch.setattr(trainer._Training, "results", lambda self: 1 / 0)
    torch.manual_seed(0)
    backbone = models.resnet18()
    with pytest.raises(ZeroDivisionError):
        train(settings, pair, backbone)
    monkeypatch.undo()
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="objects backbone weights"):
        train(settings, pair, models.resnet18())
    assert train(settings, pair, backbone).results["num_images"] == 63


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
@pytest.mark.skipif(not OFFICE31.is_dir(), reason=f"Office-31 is not at {OFFICE31}")
def test_the_real_tllibs_objects(tmp_path, monkeypatch):
    standin.forget_tllib()
    monkeypatch.syspath_prepend(REAL)
    compat.tllib()
    from tllib.vision import models
    from tllib.vision.datasets import Office31

    try:
        pair = tuple(Office31(str(OFFICE31), task) for task in "WD")
        settings = config(tmp_path, noise="pair", rate=0.2, image_size=64, freeze_backbone=True)
        run = train(settings, pair, models.resnet18())
        assert run.results["num_images"] == 332 and run.results["split"] == "10/10/11"
        record = json.loads((run.folder / "config.json").read_text())["objects"]
        assert record["backbone"]["class"] == "tllib.vision.models.resnet.ResNet"
        assert record["source"]["class"] == "tllib.vision.datasets.office31.Office31" and record["source"]["length"] == 795
        images = [run.predictions.path[0], run.predictions.path[200]]
        again = load_run(run.folder, backbone=models.resnet18()).predict(images)
        np.testing.assert_allclose(again.score, np.asarray(run.predictions.score)[[0, 200]], atol=1e-5)
    finally:
        standin.forget_tllib()
    assert "tllib" not in sys.modules
