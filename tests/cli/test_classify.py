"""tllib-ext classify: any two folders, a run, its page opened, and last lines in words."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tllib_ext.cli import classify
from tllib_ext.cli.classify import common_root
from tllib_ext.errors import UserError
from tllib_ext.evaluation.files import Predictions
from tllib_ext.evaluation.suspects_file import Suspects
from tllib_ext.report.in_words import findings_in_words
from tllib_ext.report.run_files import RunFiles
from tllib_ext.split import LabelSplit

WORDS = "-a small_cnn --image-size 32 -j 1 --device cpu".split()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Three classes with three wrong labels, in one place; new ones in another, among them a colour of no class."""
    root, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    colours = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200), "grey": (120, 120, 120)}

    def save(file, colour):
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.array(colours[colour]) + rng.integers(-30, 30, (20, 24, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)

    for name in ("red", "green", "blue"):
        for i in range(15):
            save(root / "mine" / "labelled" / name / f"{i}.png", "blue" if name == "red" and i < 3 else name)
    for i in range(60):
        save(root / "inbox" / f"2024-{i % 2 + 5:02d}" / f"{i}.png", ("red", "green", "blue", "grey")[i % 4])
    (root / "inbox" / "broken.jpg").write_bytes(b"no image")
    return root


def test_two_folders_in_one_sentence(photographs, tmp_path, monkeypatch, capsys, blank_plots):
    from tllib_ext.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    pages = []
    monkeypatch.setattr(classify, "open_page", pages.append)
    words = ["classify", str(photographs / "mine" / "labelled"), str(photographs / "inbox"), *WORDS]
    assert main([*words, "--out", "run"]) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    last = out.splitlines()[-7:]
    assert any(line.startswith("found: 60 new images: ") and "of no class that you labelled" in line for line in last)
    assert any(line.startswith("labels: ") and "of 45 look wrong" in line for line in last)
    assert any(line.startswith("doubtful: ") for line in last) and any("next: tllib-ext ask run " in line for line in last)
    assert "broken.jpg" in out + err and pages == [Path("run/report.html")]
    rows = list(csv.DictReader(open("run/predictions.csv")))
    assert len(rows) == 60 and {row["label"] for row in rows} == {""}
    config = json.loads(open("run/config.json").read())
    assert config["method"] == "mixture" and config["root"] == str(photographs)
    assert main([*words, "--out", "run"]) == 2 and "finished run" in capsys.readouterr().err
    assert main([*words, "--out", "run", "--overwrite", "--no-open"]) == 0 and len(pages) == 1


def test_the_page_opens_where_there_is_somebody_to_look_at_it(tmp_path, monkeypatch):
    pages = []
    monkeypatch.setattr(classify.webbrowser, "open", pages.append)
    for display, terminal, shown in (("", True, 0), (":0", False, 0), (":0", True, 1)):
        monkeypatch.setenv("DISPLAY", display)
        monkeypatch.setenv("WAYLAND_DISPLAY", "")
        monkeypatch.setattr(classify.sys, "platform", "linux")
        monkeypatch.setattr("sys.stdout", type("Stream", (), {"isatty": lambda self, terminal=terminal: terminal})())
        classify.open_page(tmp_path / "report.html")
        assert len(pages) == shown
    assert pages[0].startswith("file://")


@pytest.mark.parametrize(
    "labelled, new, message",
    [
        ("mine/labelled", "absent", "there is no folder .*absent: expected LABELLED"),
        ("mine/labelled", "mine/labelled", "are the same folder"),
        ("mine", "mine/labelled", "mine/labelled lies in .*mine: expected two separate folders"),
        ("mine/labelled", "mine", "mine/labelled lies in"),
    ],
)
def test_folders_that_cannot_be_a_task(photographs, labelled, new, message):
    with pytest.raises(UserError, match=message):
        common_root(str(photographs / labelled), str(photographs / new))


def test_folders_below_a_common_one(photographs, tmp_path):
    root, source, target = common_root(str(photographs / "mine" / "labelled"), str(photographs / "inbox"))
    assert (root, source, target) == (str(photographs), "mine/labelled", "inbox")
    shutil.copytree(photographs / "inbox", tmp_path / "new")
    root, source, target = common_root(str(photographs / "mine" / "labelled"), str(tmp_path / "new"))
    assert str(photographs / "mine" / "labelled") == f"{root}/{source}" and f"{root}/{target}" == str(tmp_path / "new")


def test_what_is_doubtful_is_said(tmp_path):
    split, n = LabelSplit(("cup", "pen")), 6
    names, predicted = split.label_names, np.array([0, 0, 1, 2, 2, 2])
    new = Predictions(np.arange(n), ["x"] * n, np.full(n, 3), np.zeros(n, bool), predicted, np.zeros(n), np.zeros(n),
                      np.zeros((n, 2), int), np.array([[0.55, 0.45], [0.9, 0.1], [0.9, 0.1]] * 2), names)  # fmt: skip
    zeros = np.zeros(3)
    suspects = Suspects(np.arange(3), np.array(["a", "b", "c"]), np.array([0, 0, 1]), np.array([0.5, -0.5, -0.5]),
                        np.array([1, 0, 1]), zeros, zeros, zeros, zeros, names=names)  # fmt: skip
    model = {
        "called_unknown": 0.5,
        "warnings": ["few groups"],
        "groups": [-1, -1, -1, 0, 0, 1],
        "share": 0.5,
        "share_interval": [0.45, 0.6],
        "share_known": True,
        "decides": True,
    }
    rate = {"rate_known": False, "rate_text": "about 9% are wrong"}
    run = RunFiles(tmp_path, {}, {}, {}, [], split, new, suspects, None, rate, model)
    lines = findings_in_words(run, "mine")
    assert lines[0] == "found: 6 new images: 2 cup, 1 pen; 3 of no class that you labelled, in 2 groups (truly 45% to 60% of all)"
    assert lines[1] == "labels: 1 of 3 look wrong; most often cup that look like pen"
    assert lines[2].startswith("doubtful: few groups; of the labels about 9% are wrong; 1 new image could as well")
    assert lines[-1].strip().startswith("tllib-ext audit mine --out")
