"""examples/plain_tllib_loop.py on the stand-in, from its command line to the checkpoint and the table."""

import runpy
import sys

import pytest
import standin
import torch
from conftest import ROOT

checkout, office31, tllib = standin.checkout, standin.office31, standin.tllib


@pytest.fixture
def script(office31, tllib, tmp_path, monkeypatch):
    """Runs the example with flags; what is on a screen goes to the test's."""

    def run(*flags):
        words = [office31, "-a", "resnet18", "--scratch", "-b", "8", "-j", "0", "-i", "3", "-p", "1", "--log", tmp_path, *flags]
        monkeypatch.setattr(sys, "argv", ["plain_tllib_loop.py", *map(str, words)])
        for name in ("stdout", "stderr"):  # which tllib's logger takes, and the script gives back
            monkeypatch.setattr(sys, name, getattr(sys, name))
            monkeypatch.setattr(sys, f"__{name}__", getattr(sys, name))
        runpy.run_path(str(ROOT / "examples" / "plain_tllib_loop.py"), run_name="__main__")

    return run


@pytest.mark.parametrize("preset", ["default", "code"])
def test_it_trains_evaluates_and_saves(preset, script, tmp_path, capsys):
    torch.manual_seed(5)
    script("--epochs", "2", "--preset", preset)
    out = capsys.readouterr().out
    assert "of the source labels are wrong" in out and out.count(" * OS ") == 2
    assert "Epoch: [1][2/3] Loss" in out and "universal label sets, 63 images" in out
    state = torch.load(tmp_path / "checkpoints" / "latest.pth", weights_only=True)
    assert set(state) == {"G", "F1", "F2"} and state["F1"]["head.weight"].shape == (20, 8)
