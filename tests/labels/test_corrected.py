"""Labels that were corrected with the same model: their rate is estimated by the labels before, which files and folders keep."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_labels import blobs, flip, symmetric

from tllib_ext.cli.main import main
from tllib_ext.labels import estimate_labels
from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets.corrections import RECORD, labels_before
from tllib_ext.vision.datasets.imagelist import ImageFolder
from tllib_ext.vision.datasets.moves import plan_moves
from tllib_ext.vision.datasets.universal import UniversalView


@pytest.fixture(scope="module")
def overlapping():
    """Features of classes that overlap, true and given labels: correction leaves wrong labels."""
    features, true = blobs([80] * 5, spread=2.4)
    return features, true, flip(true, symmetric(5, 0.2), 0)


def test_the_interval_of_corrected_labels_covers_what_is_wrong(overlapping):
    features, true, given = overlapping
    before = estimate_labels(features, given, 5)
    corrected = before.corrected
    wrong = (corrected != true).mean()
    again = estimate_labels(features, corrected, 5)
    assert 0.01 < wrong < (given != true).mean() and again.rate < wrong / 2  # what the model did agrees with the model
    after = before.of_labels(corrected)
    low, high = after.rate_interval
    assert low <= wrong <= high and abs(after.rate - wrong) < 0.03 and high > again.rate_interval[0]
    assert "after correction" in after.rate_text() and "after correction" not in before.rate_text()
    assert before.of_labels(given).rate == pytest.approx(before.rate) and before.of_labels(true).rate_interval[0] >= 0


def folder(root, labels):
    for i, label in enumerate(labels):
        (root / label).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (40 * i, 10, 10)).save(root / label / f"{i}.png")
    return root


def test_moved_files_keep_their_first_class_on_record(tmp_path):
    root = folder(tmp_path / "data", ["ant", "ant", "bee", "bee", "cat", "cat"])
    view = lambda: UniversalView(ImageFolder(root), LabelSplit(("ant", "bee", "cat")), "source")  # noqa: E731
    assert labels_before(view(), root) is None and labels_before(view(), None) is None
    plan_moves(root, ["ant/0.png", "bee/2.png"], ["bee", "cat"]).carry_out()
    found = dict(zip(map(Path, view().paths), labels_before(view(), root)))
    assert found[root / "bee/0.png"] == 0 and found[root / "cat/2.png"] == 1 and found[root / "cat/4.png"] == 2
    assert not any(RECORD in file for file in ImageFolder(root).passed_over)
    plan_moves(root, ["bee/0.png"], ["cat"]).carry_out()  # moved again: the first class counts
    assert dict(zip(map(Path, view().paths), labels_before(view(), root)))[root / "cat/0.png"] == 0
    plan_moves(root, ["cat/0.png", "cat/2.png"], ["ant", "bee"]).carry_out()  # and back
    assert labels_before(view(), root) is None and not (root / RECORD).exists()


@pytest.fixture
def audited(overlapping, tmp_path):
    features, true, given = overlapping
    names = np.array(list("abcde"))
    np.savez(tmp_path / "x.npz", features=features.astype(np.float32), labels=given, classes=names)
    assert main(["audit", str(tmp_path / "x.npz"), "--out", str(tmp_path / "first")]) == 0
    return tmp_path


def test_an_audit_of_an_audits_labels_knows_that_they_were_corrected(audited, overlapping, capsys):
    _, true, given = overlapping
    words = ["audit", str(audited / "x.npz"), "--labels", str(audited / "first" / "suspects.csv"), "--labels-column", "suggested"]
    assert main([*words, "--out", str(audited / "second")]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    low, high = map(float, re.search(r"after correction \(95 %: ([\d.]+)% to ([\d.]+)%", out).groups())
    suggested = [row.split(",")[4] for row in (audited / "first" / "suspects.csv").read_text().splitlines()[1:]]
    index = [int(row.split(",")[0]) for row in (audited / "first" / "suspects.csv").read_text().splitlines()[1:]]
    wrong = 100 * np.mean(np.array(suggested) != np.array(list("abcde"))[true[index]])
    assert wrong > 1 and low <= wrong <= high


def test_a_run_on_corrected_labels_knows_it_too(audited, run_example):
    shutil.copy(audited / "x.npz", audited / "y.npz")
    flags = ["-d", "features", "-s", "x", "-t", "y", "--split", "5/0/0", "-m", "mixture", "--device", "cpu", "--no-report"]
    labels = ["--labels", audited / "first" / "suspects.csv", "--labels-column", "suggested"]
    code, _, err = run_example("noisy_unida", audited, *flags, *labels, "--log", audited / "run")
    assert code == 0, err
    assert "after correction" in (audited / "run" / "label_model.json").read_text()
