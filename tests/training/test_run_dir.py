"""Run folders: what is refused, what continues, and the order in which a run finishes."""

import json
import os
import signal

import pytest
from forked_runs import features_flags, write_features

from tllib_ext.cli import train
from tllib_ext.cli.parser import run_main
from tllib_ext.errors import UserError
from tllib_ext.report import page
from tllib_ext.training import trainer
from tllib_ext.training.checkpoint import load_checkpoint
from tllib_ext.training.run_dir import Lock, Stopper, check_folder, read_config

pytestmark = pytest.mark.usefixtures("blank_plots")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_features(tmp_path_factory.mktemp("run_dir") / "features")


def words(root, folder, *more):
    return [*(word for word in features_flags(root) if word != "--no-report"), "--steps", "4", "--log", str(folder), *more]


def go(root, folder, *more):
    return run_main(lambda: train.main(words(root, folder, *more)))


class Killed(BaseException):
    """Stands for SIGKILL."""


def interrupt_report(monkeypatch, action):
    """``action`` runs when the report is about to be written."""
    import tllib_ext.api as api

    def write(folder, results):
        action()
        return page.write_report(folder, results)

    monkeypatch.setattr(api, "write_report", write)


def test_a_run_killed_before_its_report_continues(root, tmp_path, monkeypatch, capsys):
    assert go(root, tmp_path / "calm") == 0

    def die():
        raise Killed

    with monkeypatch.context() as context:
        interrupt_report(context, die)
        with pytest.raises(Killed):
            go(root, tmp_path / "run")
    assert not (tmp_path / "run" / "results.json").exists() and (tmp_path / "run" / "predictions.csv").exists()
    assert go(root, tmp_path / "run") == 0
    assert (tmp_path / "run" / "report.html").exists() and "going on at step 4" in capsys.readouterr().out
    for name in ("results.json", "predictions.csv", "model.safetensors", "suspects.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes(), name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_report_stops_the_run(root, tmp_path, monkeypatch, capsys, number):
    interrupt_report(monkeypatch, lambda: os.kill(os.getpid(), number))
    assert go(root, tmp_path / "run") == 128 + number
    assert "saved in" in capsys.readouterr().err and not (tmp_path / "run" / "results.json").exists()
    monkeypatch.undo()
    assert go(root, tmp_path / "run") == 0


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopper() as stopper:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stopper.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_overwrite_in_an_interrupted_command_keeps_its_checkpoint(root, tmp_path, monkeypatch, capsys):
    assert go(root, tmp_path / "run", "--no-report", "--lr", "0.02") == 0
    after = trainer._Training.after_step

    def stop(self, done):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        after(self, done)

    with monkeypatch.context() as context:
        context.setattr(trainer._Training, "after_step", stop)
        assert go(root, tmp_path / "run", "--no-report", "--overwrite") == 143
    assert load_checkpoint(tmp_path / "run")["step"] == 3
    capsys.readouterr()
    assert go(root, tmp_path / "run", "--no-report", "--overwrite") == 0
    assert "going on at step 3 of 4" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "results.json").read_text())["lr"] == 0.01


@pytest.mark.parametrize("name", [".lock", "config.json"])
def test_a_pipe_is_an_error_and_no_wait(root, tmp_path, capsys, name):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / name)
    assert go(root, tmp_path / "run") == 2
    err = capsys.readouterr().err
    assert f"{name} is not a regular file" in err and err.count("\n") == 1


def test_a_folder_of_other_files_is_refused(root, tmp_path, capsys):
    folder = tmp_path / "thesis"
    (folder / "sub").mkdir(parents=True)
    (folder / "report.html").write_text("mine")
    (folder / "sub" / ".draft.part").write_text("mine too")
    for more in ((), ("--overwrite",)):
        assert go(root, folder, *more) == 2
        err = capsys.readouterr().err
        assert f"--log {folder} is not a run folder and not empty (it holds report.html)" in err and err.count("\n") == 1
    assert (folder / "report.html").read_text() == "mine" and (folder / "sub" / ".draft.part").exists()
    assert sorted(os.listdir(folder)) == ["report.html", "sub"]
    check_folder(tmp_path / "none")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".config.json.7.part").touch()  # of a run that was killed at once
    check_folder(tmp_path / "begun")


def test_read_config_and_a_lock_twice(tmp_path):
    assert read_config(tmp_path) is None
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match="not a run's configuration"):
        read_config(tmp_path)
    lock = Lock(tmp_path)
    with pytest.raises(UserError, match="in use by another run"):
        Lock(tmp_path)
    lock.release()
    Lock(tmp_path).release()
