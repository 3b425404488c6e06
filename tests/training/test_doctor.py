"""The budget of a step and tllib-ext doctor."""

import json

import pytest
import torch
from torch import nn

from tllib_ext.cli.main import main
from tllib_ext.experiments.cards import CARDS, budgets, needed
from tllib_ext.methods import METHODS
from tllib_ext.methods.source_only import SourceOnly
from tllib_ext.training.budget import Counter, measure
from tllib_ext.training.config import RunConfig
from tllib_ext.training.doctor import Workload, examine

CPU = torch.device("cpu")


def test_live_memory_of_a_forward_and_a_backward_pass():
    net = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False), nn.Tanh()).to("meta")
    with Counter() as counter:
        x = torch.empty(100, 64, device="meta")
        loss = net(x).sum()
        graph = counter.live
        loss.backward()
        del loss
    rows, weights = 4 * 100 * 64, 4 * 64 * 64
    assert graph == 3 * rows + 2 * weights + 4  # the input and both outputs of tanh; those of the linear layers are freed
    assert counter.live == rows + 4 * weights and counter.flops == 2 * 100 * 64 * 64 * (2 + 3)


@pytest.mark.parametrize("name, forwards, backwards", [("source_only", 1, 1), ("divergence", 7, 6), ("dann", 2, 2)])
def test_passes_of_a_step(name, forwards, backwards):
    found = measure(name, "small_cnn", 32, 6)
    assert (found.forwards, found.backwards) == (forwards, backwards)
    assert found.flops > 0 and found.peak > found.weights > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["source_only", "divergence"])
def test_the_record_is_up_to_date(name):
    found, known = measure(name), budgets()[name]
    assert found.flops / 1e12 == pytest.approx(known["tflop"], rel=0.02)
    assert found.peak / 1e9 == pytest.approx(known["peak_gb"], rel=0.05)


def test_recorded_methods_fit_a_small_card():
    assert {"source_only", "dance", "divergence", "credo"} <= set(budgets()) <= set(METHODS)
    for name in budgets():
        need = needed(RunConfig(method=name, checkpoint_activations=True), "RTX3070")
        assert need.memory < CARDS["RTX3070"].memory == 8, name
        assert needed(RunConfig(method=name), "A100").seconds < needed(RunConfig(method=name, precision="fp32"), "A100").seconds


def test_a_method_that_breaks_or_differs_is_reported():
    class Broken(SourceOnly):
        def update(self, source, target, step, play):
            raise RuntimeError("no kernel\nfor this device")

    class Adrift(SourceOnly):
        runs = 0

        def prepare(self, context):
            type(self).runs += 1
            nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(self.runs))

    small = Workload(batch=6, steps=2)
    METHODS.register("broken_here", Broken)
    METHODS.register("adrift_here", Adrift)
    try:
        broken, adrift = (examine(name, CPU, small, CPU) for name in ("broken_here", "adrift_here"))
    finally:
        for name in ("broken_here", "adrift_here"):
            del METHODS._entries[name]
    assert not broken.agrees and "RuntimeError: no kernel for this device (test_doctor.py" in broken.error
    assert not adrift.agrees and adrift.difference > 0.01


def test_the_command_reports_and_writes(tmp_path, capsys):
    file = tmp_path / "report.json"
    assert main(["doctor", "-m", "source_only,jocor", "--device", "cpu", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "all 2 methods work on cpu" in out and "GPU" in out and "set: " in out
    report = json.loads(file.read_text())
    assert [row["method"] for row in report["methods"]] == ["source_only", "jocor"]
    assert all(row["small"]["agrees"] and row["small"]["seconds"] > 0 for row in report["methods"])


def test_timed_steps_of_another_backbone(capsys):
    words = ["doctor", "-m", "source_only", "--device", "cpu", "-a", "small_cnn", "--image-size", "32", "-b", "4",
             "--checkpoint-activations"]  # fmt: skip
    assert main(words) == 0
    assert "images/s" in capsys.readouterr().out


@pytest.mark.slow
def test_the_doctor_finds_every_method_healthy(capsys):
    assert main(["doctor", "--device", "cpu"]) == 0
