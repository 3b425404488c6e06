"""The yardstick: the same result in both forms, fewer passes, and a page that says what the record says."""

import json

import numpy as np
import pytest
import torch
from benchmark.contest import Contestant, Timing, alternate, median, ratio
from benchmark.contests import TOLERANCE, difference
from benchmark.page import tables, write_page
from benchmark.pipelines import OurData, OurEvaluation, PlainData, PlainEvaluation, write_photographs
from benchmark.scale import Metrics, Start, write_list
from benchmark.scenes import OurStep, PlainStep
from benchmark.switches import SWITCHES
from conftest import ROOT

from tllib_ext.errors import UserError
from tllib_ext.io import BEGIN, END
from tllib_ext.training.compile import why_not


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def compile(request):
    """Whether our side is compiled."""
    if request.param and why_not(torch.device("cpu")):
        pytest.skip(f"nothing can be compiled here: {why_not(torch.device('cpu'))}")
    return request.param


@pytest.mark.parametrize("arch, batch", [("features", 8), ("small_cnn", 4)])
def test_both_forms_end_with_the_same_parameters(arch, batch, compile):
    scene = dict(arch=arch, px=32, batch=batch, double=True, count=True)
    plain, ours = PlainStep(**scene), OurStep(compile=compile, **scene)
    start = plain.state()
    assert difference(start, ours.state()) == 0
    for side in (plain, ours):
        side.run(2)
    assert difference(plain.state(), ours.state()) <= TOLERANCE < 1e-3 < difference(start, plain.state())
    assert plain.passes() == {"forward": 16, "backward": 16}
    assert ours.passes() == {"forward": 14, "backward": 12}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["mobilenet_v2", "resnet18"])
def test_large_networks_end_with_the_same_parameters_too(arch, compile):
    scene = dict(arch=arch, px=64, batch=6, double=True)
    plain, ours = PlainStep(**scene), OurStep(compile=compile, **scene)
    for side in (plain, ours):
        side.run(2)
    assert difference(plain.state(), ours.state()) <= TOLERANCE


def test_both_pipelines_give_the_same_pixels(tmp_path):
    paths = write_photographs(tmp_path / "photos", 40, 5)
    plain, ours = PlainData(paths, batch=3), OurData(paths, str(tmp_path / "cache"), batch=3)
    np.testing.assert_allclose(plain.sample(), ours.sample(), atol=1e-6)
    for side in (plain, ours):
        side.run(2)
        side.everything()
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1  # what was built to be timed is gone
    ours.clear()
    assert not (tmp_path / "cache").exists()


def test_both_evaluations_say_the_same(tmp_path):
    paths = write_photographs(tmp_path / "photos", 40, 5)
    scene = dict(paths=paths, arch="small_cnn", px=32, batch=4)
    classes, scores = PlainEvaluation(chunk=2, **scene).evaluate()
    ours, our_scores = OurEvaluation(folder=str(tmp_path / "cache"), **scene).evaluate()
    assert classes.tolist() == ours.tolist()
    np.testing.assert_allclose(scores, our_scores, rtol=1e-3, atol=1e-3)


class Counter:
    """Somebody to ask."""

    def __init__(self, start=0):
        self.value = start

    def add(self, much):
        self.value += much
        return self.value

    def fail(self):
        raise ValueError("as asked")


def test_contestants_answer_in_turn_and_report_their_failure():
    with Contestant(Counter, start=2) as a, Contestant(Counter) as b:
        times = alternate({"a": a, "b": b}, "add", [(1,), (2,)])
        assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
        assert (a.ask("add", 0), b.ask("add", 0)) == (5, 3)
        assert a.peak() > 1
        with pytest.raises(RuntimeError, match="as asked"):
            b.ask("fail")


def test_medians_and_ratios():
    slow, fast = [Timing(3, 1), Timing(9, 2), Timing(4, 9)], [Timing(2, 1), Timing(3, 1), Timing(2, 1)]
    assert median(slow) == Timing(4, 2)
    assert ratio(slow, fast) == Timing(2, 2)  # of 1.5, 3, 2 and of 1, 2, 9


def test_differences_need_the_same_names():
    with pytest.raises(ValueError, match="head"):
        difference({"w": np.zeros(1), "head": np.zeros(1)}, {"w": np.zeros(1)})


def test_lists_and_metrics(tmp_path):
    for shuffled in (False, True):
        write_list(tmp_path / "list.txt", 400, shuffled)
        start = Start(str(tmp_path / "list.txt"))
        start.run()
        assert [len(batch) for batch in start.batches] == [36, 36]
    Metrics(300).run()


def test_the_page_says_what_the_record_says():
    record = json.loads((ROOT / "docs" / "performance.json").read_text())
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == tables(record).strip()


def test_a_page_without_marks_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(UserError, match="measured"):
        write_page(tmp_path / "page.md", {})


@pytest.mark.parametrize("words, said", [
    (["stap"], "step"), (["--root", "nowhere"], "dslr"), (["--repeats", "0"], "1 or more"), (["switches"], "--features DIR"),
    (["--features", "nowhere"], "amazon.npz")])  # fmt: skip
def test_bad_flags(run_example, words, said):
    code, _, err = run_example("benchmark", *words)
    assert code == 2 and said in err and "Traceback" not in err


@pytest.mark.slow
def test_switches_on_tiny_runs(run_example, tmp_path):
    rng, classes = np.random.default_rng(0), [f"c{i}" for i in range(31)]
    labels = np.arange(124) % 31
    for domain in ("amazon", "dslr"):
        np.savez(tmp_path / domain, features=rng.normal(size=(124, 8)).astype("float32"), labels=labels, classes=classes)
    code, out, err = run_example("benchmark", "switches", "--quick", "--features", tmp_path, "--json", tmp_path / "r.json")
    assert code == 0, err
    rows = json.loads((tmp_path / "r.json").read_text())["switches"]["rows"]
    assert [row["switch"] for row in rows] == list(SWITCHES) and rows[0]["change"] == 0
    assert all(0 <= row["mean"] <= 1 for row in rows) and "--batch-norm local" in out


@pytest.mark.slow
def test_every_part_quickly(run_example, tmp_path):
    words = ["--quick", "--threads", 1, "--arch", "small_cnn,features", "--json", tmp_path / "r.json"]
    code, out, err = run_example("benchmark", *words)
    assert code == 0, err
    record = json.loads((tmp_path / "r.json").read_text())
    assert set(record) == {"step", "data", "eval", "start_up", "metrics", "classes", "processes"}
    assert all(row["same"] and row["ours_forwards"] == 7 and row["ours_backwards"] == 6 for row in record["step"]["rows"])
    assert all(row["ratio"] > 0 and row["pixel_difference"] < 1e-5 for row in record["data"]["rows"])
    assert "Training step" in out and "generated 300 x 300" in out
