"""CONTRIBUTING.md, "Add a method in five steps", followed to the letter: the code is taken from the page."""

import dataclasses
import json
import re
import sys

import numpy as np
import pytest
import test_method_sweep as sweep
from test_compat import ROOT

from tllib_ext.methods import METHODS

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
FILE, LINE, TEST = (text for kind, text in BLOCKS if kind == "python")


@pytest.fixture
def smoothing(tmp_path, monkeypatch):
    """Steps 1 and 2: write the file, register its name."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "smoothing.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    METHODS.register("smoothing", "my_package.smoothing:Smoothing")
    yield METHODS.get("smoothing")
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def test_the_page_has_five_steps():
    assert re.findall(r"^### (\d)\.", PAGE, flags=re.MULTILINE) == list("12345")


def test_the_line_looks_like_its_neighbours():
    lines = (ROOT / "tllib_ext" / "methods" / "__init__.py").read_text().splitlines()
    pattern = r'        "\w+": \("tllib_ext\.methods\.\w+:\w+", ".+"\),'
    assert re.fullmatch(pattern, LINE.rstrip("\n")) and any(re.fullmatch(pattern, line) for line in lines)


def test_step_3_the_loss_by_hand(smoothing):
    """What is printed, without any help: pytest collects it from a file and runs it."""
    assert "tllib_ext.methods.smoothing" in TEST
    scope = {}
    exec(compile(TEST.replace("tllib_ext.methods.smoothing", "my_package.smoothing"), "CONTRIBUTING.md", "exec"), scope)
    tests = [value for name, value in scope.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


@pytest.mark.parametrize("scenario", sweep.SPLITS)
def test_step_4_the_sweep(smoothing, scenario):
    sweep.test_three_updates_and_a_prediction("smoothing", scenario)


def test_step_4_the_rest_of_the_sweep(smoothing):
    sweep.test_state_round_trip("smoothing")
    sweep.test_training_continues_from_its_state("smoothing")
    sweep.test_same_seed_same_weights_and_source_only_means_it("smoothing")
    sweep.test_hyper_parameters_say_where_they_come_from("smoothing")


def test_step_4_a_run(smoothing, tmp_path, capsys):
    from tllib_ext.cli.train import main

    rng = np.random.default_rng(0)
    classes = ["ant", "bee", "cat", "dog"]
    labels = np.repeat(np.arange(4), 12)
    for domain in ("left", "right"):
        features = (3 * np.eye(8)[labels] + rng.normal(size=(48, 8))).astype(np.float32)
        np.savez(tmp_path / f"{domain}.npz", features=features, labels=labels, classes=np.array(classes))
    flags = f"{tmp_path} -d features -s left -t right --split 2/1/1 -m smoothing --hp epsilon=0.2 --steps 4 -b 6 --no-report"
    assert main([*flags.split(), "--device", "cpu", "--noise", "pair", "--log", str(tmp_path / "run")]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["method"] == "smoothing" and 0 <= results["os"] <= 1
    assert json.loads((tmp_path / "run" / "config.json").read_text())["hparams"] == {"epsilon": 0.2}
    assert main(["-m", "smoothing", "--list-hp"]) == 0
    assert "paper §7" in capsys.readouterr().out


def test_step_5_the_markers(smoothing):
    markers = [text for kind, text in BLOCKS if kind == "markdown"]
    assert markers == ["<!-- hparams:smoothing -->\n<!-- results:smoothing -->\n"]
    assert [f.name for f in dataclasses.fields(smoothing.Hparams)] == ["epsilon"]
