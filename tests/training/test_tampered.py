"""Damaged and tampered files of a run, and machines that lack something: one line, never a traceback."""

import json
import os
import pwd
import sys

import numpy as np
import pytest
import torch
from forked_runs import features_flags, write_features

from tllib_ext.cli import train
from tllib_ext.cli.parser import run_main
from tllib_ext.errors import UserError
from tllib_ext.io import cache_dir, read_json_lines
from tllib_ext.report.page import write_report
from tllib_ext.vision.datasets.imagelist import FeatureList
from tllib_ext.vision.models.providers import read_state


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_features(tmp_path_factory.mktemp("tampered") / "features")


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    assert go(root, folder) == 0
    return folder


def go(root, folder, *more):
    return run_main(lambda: train.main([*features_flags(root), "--steps", "2", "--log", str(folder), *more]))


@pytest.fixture
def checkpoint(run):
    """The checkpoint file of an unfinished run; its content is restored afterwards."""
    file, results = run / "checkpoints" / "last.pt", run / "results.json"
    before, finished = file.read_bytes(), results.read_bytes()
    results.unlink()
    yield file
    file.write_bytes(before)
    results.write_bytes(finished)


def test_tampered_checkpoints(root, run, checkpoint, capsys):
    state = torch.load(checkpoint, weights_only=True)
    means = {"sums": {"loss": torch.tensor(1.0)}, "counts": {"loss": 1}}
    optimisers = {name: {**each, "state": {k: {"momentum_buffer": torch.zeros(1)} for k in each["state"]}}
                  for name, each in state["play"]["optimisers"].items()}  # fmt: skip
    changes = [{"step": value} for value in (-5, 999, 1e30, float("nan"), None, True, 2.5, "2")]
    changes += [{"skipped": -1}, {"meter": [{**means, "counts": {}}]}, {"meter": [{**means, "counts": {"loss": 0}}]},
                {"meter": [{**means, "sums": {"loss": "x"}}]}, {"play": {**state["play"], "optimisers": optimisers}}]  # fmt: skip
    for change in changes:
        torch.save({**state, **change}, checkpoint)
        capsys.readouterr()
        assert go(root, run) == 2, change
        err = capsys.readouterr().err
        assert "does not fit this run" in err and err.count("\n") == 1, change


def test_an_empty_checkpoint_and_empty_weights(root, run, checkpoint, tmp_path, capsys):
    checkpoint.write_bytes(b"")
    assert go(root, run) == 2
    err = capsys.readouterr().err
    assert f"cannot read the checkpoint {checkpoint}: EOFError" in err and err.count("\n") == 1
    (tmp_path / "w.pth").touch()
    with pytest.raises(UserError, match=r"cannot read the weights .*w\.pth: EOFError"):
        read_state(tmp_path / "w.pth")


def test_text_for_a_number_in_the_evaluations(run, tmp_path, capsys):
    file = run / "results.jsonl"
    before = file.read_text()
    try:
        file.write_text("".join(json.dumps({**json.loads(line), "os": "high"}) + "\n" for line in before.splitlines()))
        with pytest.raises(UserError, match=r"results\.jsonl, step 1: os is 'high', expected a number"):
            write_report(run)
    finally:
        file.write_text(before)
    assert read_json_lines(file)[0]["scenario"] == "universal"


def test_a_batch_of_one_and_features_of_no_width(root, tmp_path, capsys):
    assert go(root, tmp_path / "run", "-b", "1") == 2
    err = capsys.readouterr().err
    assert "--batch-size 1: batch normalisation needs at least two samples" in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()
    np.savez(tmp_path / "f.npz", features=np.zeros((3, 0)), labels=[0, 1, 0], classes=["a", "b"])
    with pytest.raises(UserError, match=r"features of shape \(3, 0\)"):
        FeatureList(tmp_path / "f.npz")


def test_no_home_folder(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("TLLIB_EXT_CACHE", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UserError, match="no home folder: set TLLIB_EXT_CACHE"):
        cache_dir()


def test_out_of_memory_on_a_cpu(capsys):
    def allocate():
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried …")

    assert run_main(allocate) == 1
    assert capsys.readouterr().err == "error: out of memory: try a smaller -b, --cache off or fewer -j\n"


def test_closed_streams(monkeypatch, capfd):
    def main():
        print("progress", file=sys.stderr)
        sys.stdout.write("a line")
        raise UserError("bad input")

    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert run_main(main) == 2
    assert sys.stderr.name == sys.stdout.name == os.devnull and capfd.readouterr() == ("", "")
