"""With the real tllib: its data sets through our view, its backbones in our script."""

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import SHARED

from tllib_ext.vision.datasets.catalog import open_data
from tllib_ext.vision.datasets.universal import UniversalView

REAL = os.environ.get("TLLIB_EXT_REAL_TLLIB", "")
OFFICE = SHARED / "data" / "office31"
pytestmark = [
    pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib"),
    pytest.mark.skipif(not OFFICE.exists(), reason="Office-31 is not here"),
]


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(REAL)), *sys.path])


@pytest.mark.parametrize("source, target", [("A", "D"), ("webcam", "ama")])
def test_tllibs_own_class_gives_the_same_samples(source, target):
    ours, theirs = (open_data(str(OFFICE), name, source, target) for name in ("Office31", "tllib:Office31"))
    assert ours.split == theirs.split
    for role, a, b in (("source", ours.source, theirs.source), ("target", ours.target, theirs.target)):
        ours_view, theirs_view = UniversalView(a, ours.split, role), UniversalView(b, ours.split, role)
        assert [(os.path.realpath(p), y) for p, y in ours_view.samples] == [
            (os.path.realpath(p), y) for p, y in theirs_view.samples
        ]


@pytest.mark.slow
def test_tllibs_backbone_trains(run_example, tmp_path):
    words = (OFFICE, "-d", "tllib:Office31", "-s", "D", "-t", "W", "-a", "tllib:resnet18", "--weights", "none", "--steps", "5",
             "-b", "4", "-j", "0", "--cache", "off", "--eval-every", "5", "--log", "run", "--no-report")  # fmt: skip
    code, _, err = run_example("noisy_unida", *words)
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "results.json").read_text())["arch"] == "tllib:resnet18"
