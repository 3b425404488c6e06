"""Classes and files whose names are code for somebody: they train, report and predict as names and nothing else."""

import csv
import html.parser
import json
import os
import re
import sys

import numpy as np
import pytest
from conftest import browse, needs_browser
from PIL import Image

from tllib_ext.evaluation import __main__ as evaluation
from tllib_ext.evaluation.files import load_split, read_predictions
from tllib_ext.io import unescape_formula

UNICODE = "".join(chr(c) for c in (*range(0x4E00, 0x4E00 + 250), *range(0x05D0, 0x05EA), *range(0x1F600, 0x1F618)))
NAMES = ["<script>alert(1)</script>", "=cmd|'/C calc'!A0", "../../x", 'a,b"c', UNICODE, "'+\x1b[2J\n-@"]
assert len(UNICODE) == 300
FLAGS = ("-s", "alpha", "-t", "beta", "--split", "3/2/1", "--noise", "pair", "-b", "8", "--steps", "6", "--log", "run")


class Page(html.parser.HTMLParser):
    """Collects tags and handlers; what a browser would run."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.handlers, self._inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag == "script"
        self.handlers += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "").lower()]

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts.append(data)


def check_cells(file):
    """No cell is a formula, whatever program opens the file."""
    with open(file, newline="", encoding="utf-8", errors="surrogateescape") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        for name, cell in row.items():
            number = name in ("index", "score", "suspicion", "loss", "threshold", "visits", "group") or name.startswith("p")
            assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n") or (number and name != "path"), (name, cell)
    return rows


def check_run(folder, names):
    config = json.loads((folder / "config.json").read_text())
    split = load_split(folder / "config.json")
    assert set(split.source_classes + split.target_private) == set(names) and config["split"]["shared"] == list(split.shared)
    rows = check_cells(folder / "predictions.csv")
    assert {unescape_formula(row["predicted"]) for row in rows} <= {*split.source_classes, "unknown"}
    read = read_predictions(folder / "predictions.csv", split)
    assert len(read.path) == len(rows) and read.path == [unescape_formula(row["path"]) for row in rows]
    check_cells(folder / "suspects.csv")
    page = Page((folder / "report.html").read_text(encoding="utf-8", errors="surrogateescape"))
    assert not any("alert(1)" in script for script in page.scripts) and page.handlers == []


def test_features_of_hostile_classes(run_example, tmp_path, monkeypatch, capfd, blank_plots):
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(6), 12)
    for shift, domain in enumerate(("alpha", "beta")):
        features = 3 * np.eye(6)[labels] + rng.normal(size=(72, 6)) / 3 + shift / 5
        paths = np.array([f"{NAMES[y]}/{i}.png" for i, y in enumerate(labels)])
        np.savez(tmp_path / f"{domain}.npz", features=features.astype("f4"), labels=labels, classes=np.array(NAMES), paths=paths)
    code, out, err = run_example("noisy_unida", tmp_path, *FLAGS)
    assert code == 0, err
    assert "\x1b" not in out and "<script>alert(1)</script>" in out
    check_run(tmp_path / "run", NAMES)
    monkeypatch.setattr(sys, "argv", ["evaluation", str(tmp_path / "run" / "predictions.csv")])
    assert evaluation.main() == 0
    os_value = json.loads((tmp_path / "run" / "results.json").read_text())["os"]
    assert f"{os_value:.4f}" in capfd.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alpha.npz", "beta.npz", "run"], "no name became a path"


@pytest.fixture
def folders(tmp_path):
    """Class folders and files of every name that a file system takes, one that is not text among them."""
    names = [b"<script>alert(1)<", b"=cmd|'C calc'!A0", b"x..", b'a,b"c', UNICODE[:80].encode(), b"not\xfftext"]
    rng = np.random.default_rng(0)
    for domain in (b"alpha", b"beta"):
        for number, name in enumerate(names):
            folder = os.path.join(os.fsencode(tmp_path), b"data", domain, name)
            os.makedirs(folder)
            for i in range(6):
                file = os.path.join(folder, [b"%d.png", b"=%d+1.png", b"<img onerror=%d>.png", b"new\nline%d.png"][i % 4] % i)
                with open(file, "wb") as stream:
                    Image.fromarray(rng.integers(0, 90, (9, 9, 3), dtype=np.uint8) + np.uint8(25 * number)).save(stream, "PNG")
    return tmp_path / "data", [os.fsdecode(name) for name in names]


def test_folders_of_hostile_names(run_example, folders, tmp_path, blank_plots):
    root, names = folders
    code, out, err = run_example("noisy_unida", root, *FLAGS, "-a", "small_cnn", "--image-size", "32", "-j", "1", "--check")
    assert code == 0, err
    check_run(tmp_path / "run", names)
    code, _, err = run_example("predict", "run", root / "beta", "--out", "predictions.csv")
    assert code == 0, err
    mine = {unescape_formula(row["path"]): row["predicted"] for row in check_cells(tmp_path / "predictions.csv")}
    its = {unescape_formula(row["path"]): row["predicted"] for row in check_cells(tmp_path / "run" / "predictions.csv")}
    assert len(mine) == 36 and len(its) == 24 and {path: mine[path] for path in its} == its


@needs_browser
def test_a_browser_runs_no_name(run_example, tmp_path, blank_plots):
    act = "document.title='owned'"
    names = [f"<script>{act}</script>", f"<img src=x onerror={act}>", f"</style></script><svg onload={act}>", f"';{act};//",
             f'"><body onpageshow={act}>', f"javascript:{act}"]  # fmt: skip
    labels = np.repeat(np.arange(6), 12)
    for domain in ("alpha", "beta"):
        paths = np.array([f"{names[y]}/{i}{names[y]}.png" for i, y in enumerate(labels)])
        features = 3 * np.eye(6)[labels] + np.random.default_rng(0).normal(size=(72, 6)) / 3
        np.savez(tmp_path / f"{domain}.npz", features=features.astype("f4"), labels=labels, classes=np.array(names), paths=paths)
    code, _, err = run_example("noisy_unida", tmp_path, *FLAGS)
    assert code == 0, err
    # The same payload outside of our page does run in this browser: the test can fail.
    (tmp_path / "open.html").write_text(f"<title>x</title><body>{names[0]}{names[1]}")
    titles = []
    for page in (tmp_path / "open.html", tmp_path / "run" / "report.html"):
        seen = browse("--dump-dom", page=page).stdout
        titles.append(re.search(r"<title>(.*?)</title>", seen, re.S).group(1))
    assert titles[0] == "owned" and "owned" not in titles[1] and titles[1]
