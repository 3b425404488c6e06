"""A run that died and went on ends as one that nobody disturbed; a folder has one run at a time."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
import torch
from conftest import ROOT, without_refused
from forked_runs import COMPARED_FILES, fork_run, kill_after, preload, read_outputs, temporary_files, write_features

from tllib_ext.cli import train
from tllib_ext.methods import METHODS
from tllib_ext.training import trainer as run_module
from tllib_ext.training.checkpoint import load_checkpoint
from tllib_ext.training.recorder import Recorder
from tllib_ext.training.run_dir import Lock

FLAGS = ("-d", "features", "-s", "alpha", "-t", "beta", "--split", "3/2/1", "--noise", "pair", "-b", "8",
         "--bottleneck-dim", "16", "--no-report", "--device", "cpu")  # fmt: skip
SHORT = (*FLAGS, "--steps", "12", "--eval-every", "4", "--checkpoint-every", "3")


class Died(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is cleaned up in its name."""


def go(root, folder, *more, method="divergence"):
    return train.main([str(root), *without_refused(SHORT, method), "-m", method, "--log", str(folder), *more])


def die_at(monkeypatch, name, number):
    """The run dies when ``_Training.name`` is called for the ``number``-th time."""
    whole, calls = getattr(run_module._Training, name), []

    def dying(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == number:
            raise Died
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(run_module._Training, name, dying)


@pytest.mark.parametrize("method, where, number", [
    ("divergence", "save", 2),  # a checkpoint is due and does not get written
    ("divergence", "evaluate", 2),  # its checkpoint is written, its evaluation is not
    ("divergence", "results", 1),  # all trained, nothing said
    ("dance", "after_step", 8),  # the bank
    ("credo", "after_step", 8),  # the label model
    ("coteaching", "evaluate", 1),  # before the first evaluation is on file
])  # fmt: skip
def test_a_dead_run_goes_on_to_the_same_bytes(feature_root, tmp_path, monkeypatch, capsys, method, where, number):
    assert go(feature_root, tmp_path / "reference", method=method) == 0
    with monkeypatch.context() as context:
        die_at(context, where, number)
        with pytest.raises(Died):
            go(feature_root, tmp_path / "interrupted", method=method)
    assert not (tmp_path / "interrupted" / "results.json").exists()
    if load_checkpoint(tmp_path / "interrupted") is not None:  # a line that was being written when the machine died
        with open(tmp_path / "interrupted" / "results.jsonl", "a") as file:
            file.write('{"step": 99, "os": 0.')
    capsys.readouterr()
    assert go(feature_root, tmp_path / "interrupted", method=method) == 0
    assert "going on at step" in capsys.readouterr().out
    for name in COMPARED_FILES:
        assert (tmp_path / "interrupted" / name).read_bytes() == (tmp_path / "reference" / name).read_bytes(), name


def test_a_run_without_a_checkpoint_starts_anew_and_leaves_no_old_lines(feature_root, tmp_path, monkeypatch):
    words = ("--checkpoint-every", "100", "--eval-every", "2")
    assert go(feature_root, tmp_path / "reference", *words) == 0
    with monkeypatch.context() as context:
        die_at(context, "after_step", 7)
        with pytest.raises(Died):
            go(feature_root, tmp_path / "interrupted", *words)
    (tmp_path / "interrupted" / "checkpoints").mkdir()
    (tmp_path / "interrupted" / "checkpoints" / ".last.pt.123.part").write_bytes(b"half a checkpoint")
    assert len((tmp_path / "interrupted" / "results.jsonl").read_text().splitlines()) == 3
    assert go(feature_root, tmp_path / "interrupted", *words) == 0
    assert read_outputs(tmp_path / "interrupted") == read_outputs(tmp_path / "reference")
    assert not temporary_files(tmp_path / "interrupted")


def test_neither_evaluations_nor_checkpoints_change_the_model(feature_root, tmp_path):
    flags = {"rare": ("--eval-every", "12", "--checkpoint-every", "12"), "often": ("--eval-every", "1", "--keep", "3"),
             "late": ("--checkpoint-minutes", "1e-9"), "sure": ("--deterministic",)}  # fmt: skip
    try:
        for name, more in flags.items():
            assert go(feature_root, tmp_path / name, *more) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    models = {(tmp_path / name / "model.safetensors").read_bytes() for name in flags}
    assert len(models) == 1
    kept = sorted(file.name for file in (tmp_path / "often" / "checkpoints").iterdir())
    assert kept == ["last.pt", "step_00000006.pt", "step_00000009.pt", "step_00000012.pt"]


def test_changed_data_is_not_gone_on_with(feature_root, tmp_path, monkeypatch, run_example):
    import numpy as np

    root = tmp_path / "data"
    root.mkdir()
    for name in ("alpha", "beta"):
        arrays = dict(np.load(feature_root / f"{name}.npz"))
        np.savez(root / f"{name}.npz", **arrays)
    with monkeypatch.context() as context:
        die_at(context, "after_step", 6)
        with pytest.raises(Died):
            go(root, tmp_path / "run")
    arrays["paths"][3] = "another.png"
    np.savez(root / "beta.npz", **arrays)
    code, _, err = run_example("noisy_unida", root, *SHORT, "--log", "run")
    assert code == 2 and "another, unfinished run (lists" in err


def test_a_foreign_checkpoint_is_refused(feature_root, tmp_path, monkeypatch, run_example):
    with monkeypatch.context() as context:
        die_at(context, "after_step", 6)
        with pytest.raises(Died):
            go(feature_root, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    for wrong in ({**state, "method": {}}, {**state, "audit": []}, {**state, "step": "x"}, {**state, "format": 0}, [1]):
        torch.save(wrong, file)
        code, _, err = run_example("noisy_unida", feature_root, *SHORT, "--log", "run")
        assert code == 2 and len(err.splitlines()) == 1 and "checkpoint" in err, err
    file.write_bytes(file.read_bytes()[:100])
    code, _, err = run_example("noisy_unida", feature_root, *SHORT, "--log", "run")
    assert code == 2 and "cannot read the checkpoint" in err
    code, _, err = run_example("noisy_unida", feature_root, *SHORT, "--log", "run", "--overwrite")
    assert code == 0, err
    assert len(list((tmp_path / "run" / "tb").glob("events.*"))) == 1, "the curves are of one run"


def test_resume_insists(feature_root, tmp_path, run_example):
    code, _, err = run_example("noisy_unida", feature_root, *SHORT, "--log", "run", "--resume")
    assert code == 2 and "no run in run" in err


def test_a_folder_in_use_is_locked(feature_root, tmp_path, run_example):
    holder = "import sys, time; from pathlib import Path; from tllib_ext.training.run_dir import Lock\n" \
             "lock = Lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", holder, tmp_path / "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:  # fmt: skip
        assert process.stdout.readline() == b"held\n"
        code, _, err = run_example("noisy_unida", feature_root, *SHORT, "--log", "run")
        assert code == 2 and "run is in use by another run" in err
        assert not (tmp_path / "run" / "config.json").exists()
        process.kill()
    Lock(tmp_path / "run").release()  # ends with its process, however that ended


def test_torn_lines_are_left_out(tmp_path):
    good = [json.dumps({"step": step, "os": 0.5}) for step in (10, 20)]
    (tmp_path / "results.jsonl").write_bytes("\n".join(good).encode() + b'\n{"step": 30, "o\xff')
    recorder = Recorder(tmp_path)
    assert [line["step"] for line in recorder.lines()] == [10, 20]
    recorder.keep_before(20)
    assert (tmp_path / "results.jsonl").read_text() == good[0] + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on(feature_root, tmp_path, monkeypatch, method):
    assert go(feature_root, tmp_path / "reference", method=method) == 0
    with monkeypatch.context() as context:
        # a method without training has one step, and its checkpoint is written before the evaluation
        die_at(context, *(("evaluate", 1) if METHODS.get(method).training_free else ("after_step", 8)))
        with pytest.raises(Died):
            go(feature_root, tmp_path / "interrupted", method=method)
    assert load_checkpoint(tmp_path / "interrupted") is not None
    assert go(feature_root, tmp_path / "interrupted", method=method) == 0
    assert read_outputs(tmp_path / "interrupted") == read_outputs(tmp_path / "reference")


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path):
    preload(write_features(tmp_path / "features"))
    words = [str(tmp_path / "features"), *FLAGS, "--steps", "40", "--checkpoint-every", "2", "--log"]
    begin = time.monotonic()
    os.waitpid(fork_run([*words, str(tmp_path / "reference")], tmp_path / "reference.log"), 0)
    duration, rng, folder = time.monotonic() - begin, random.Random(0), tmp_path / "interrupted"
    for number in range(6):
        child = fork_run([*words, str(folder)], tmp_path / "interrupted.log")
        if not kill_after(child, folder, rng.uniform(0, duration), in_checkpoint=number % 2 == 0):
            break
    else:
        os.waitpid(fork_run([*words, str(folder)], tmp_path / "interrupted.log"), 0)
    assert read_outputs(folder) == read_outputs(tmp_path / "reference")
