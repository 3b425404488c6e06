"""The benchmark: both loops give the same result, with the claimed number of passes; the page shows the record."""

import json

import numpy as np
import pytest
import torch
from benchmark.compare import TOLERANCE, difference
from benchmark.page import tables, write_page
from benchmark.timing import Timing, Worker, interleave, median, speedup
from benchmark.workloads import OPTIMISATIONS, LonghandStep, PackageStep
from conftest import ROOT
from counter import Counter

from tllib_ext.errors import UserError
from tllib_ext.io import BEGIN, END
from tllib_ext.training.compile import why_not


@pytest.mark.parametrize("arch, batch", [("features", 8), ("small_cnn", 4)])
@pytest.mark.parametrize("without", [(), OPTIMISATIONS])
def test_both_loops_end_with_the_same_parameters(arch, batch, without):
    options = dict(arch=arch, px=32, batch=batch, double=True, count=True)
    plain, ours = LonghandStep(**options), PackageStep(without=without, **options)
    start = plain.state()
    assert difference(start, ours.state()) == 0
    for side in (plain, ours):
        side.run(2)
    assert difference(plain.state(), ours.state()) <= TOLERANCE < 1e-3 < difference(start, plain.state())
    assert plain.passes() == {"forward": 16, "backward": 16}
    assert ours.passes() == {"forward": 14, "backward": 12}


@pytest.mark.slow
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("arch", ["mobilenet_v2", "resnet18"])
def test_large_networks_end_with_the_same_parameters_too(arch, compile):
    if compile and (reason := why_not(torch.device("cpu"))):
        pytest.skip(f"torch.compile does not work here: {reason}")
    options = dict(arch=arch, px=64, batch=6, double=True)
    plain, ours = LonghandStep(**options), PackageStep(compile=compile, **options)
    for side in (plain, ours):
        side.run(2)
    assert difference(plain.state(), ours.state()) <= TOLERANCE


def test_workers_take_turns_and_report_failures():
    with Worker(Counter, start=2) as a, Worker(Counter) as b:
        times = interleave({"a": a, "b": b}, "add", [(1,), (2,)])
        assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
        assert (a.call("add", 0), b.call("add", 0)) == (5, 3)
        assert a.peak() > 1
        with pytest.raises(ValueError, match="raised in the worker"):
            b.call("fail")


def test_medians_and_ratios():
    slow, fast = [Timing(3, 1), Timing(9, 2), Timing(4, 9)], [Timing(2, 1), Timing(3, 1), Timing(2, 1)]
    assert median(slow) == Timing(4, 2)
    assert speedup(slow, fast) == Timing(2, 2)  # of 1.5, 3, 2 and of 1, 2, 9


def test_differences_need_the_same_names():
    with pytest.raises(ValueError, match="head"):
        difference({"w": np.zeros(1), "head": np.zeros(1)}, {"w": np.zeros(1)})


def test_the_page_shows_the_record():
    record = json.loads((ROOT / "docs" / "performance.json").read_text())
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == tables(record).strip()


def test_the_recorded_step_holds_the_claims():
    rows = {row["arch"]: row for row in json.loads((ROOT / "docs" / "performance.json").read_text())["step"]["rows"][::-1]}
    assert rows["mobilenet_v2"]["ratio"] >= 1.5 and rows["resnet18"]["ratio"] >= 1.25
    for row in rows.values():
        assert row["same"] and row["ours_passes"] == {"forward": 7, "backward": 6}


def test_a_page_without_marks_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(UserError, match="measured"):
        write_page(tmp_path / "page.md", {})


@pytest.mark.parametrize("words, message", [(["stap"], "step"), (["--repeats", "0"], "1 or more")])
def test_bad_flags(run_example, words, message):
    code, _, err = run_example("benchmark", *words)
    assert code == 2 and message in err and "Traceback" not in err


@pytest.mark.slow
def test_step_and_ablation_quickly(run_example, tmp_path):
    words = ["--quick", "--threads", 1, "--arch", "small_cnn,features", "--json", tmp_path / "r.json"]
    code, out, err = run_example("benchmark", *words)
    assert code == 0, err
    record = json.loads((tmp_path / "r.json").read_text())
    assert set(record) == {"step", "ablation", "stages"}
    assert all(row["same"] and row["ours_passes"] == {"forward": 7, "backward": 6} for row in record["step"]["rows"])
    assert [row["without"] for row in record["ablation"]["rows"]] == [*OPTIMISATIONS, "all of these"]
    rows = record["stages"]["rows"]
    assert [(row["method"], row["train_from"]) for row in rows] == [
        (method, stage) for method in ("divergence", "credo") for stage in ("head", "stages.2", "all")
    ]
    assert all(row["ms"] > 0 and row["mb"] > 1 for row in rows)
    assert "Training step" in out and "Ablation" in out and "first stage that is trained" in out
