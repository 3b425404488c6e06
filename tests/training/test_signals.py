"""Signals, full disks and two at once: what was done is kept, what is said is one line."""

import os
import resource
import signal
import sys
import time

import pytest
import torch
from forked_runs import (
    exit_code,
    features_flags,
    fork_run,
    images_flags,
    preload,
    read_outputs,
    temporary_files,
    write_features,
    write_images,
)

from tllib_ext import io as files
from tllib_ext.cli import audit, features, train
from tllib_ext.cli.parser import run_main
from tllib_ext.training import frozen as setup
from tllib_ext.training import trainer as run_module
from tllib_ext.training.checkpoint import load_checkpoint
from tllib_ext.training.run_dir import Stopper
from tllib_ext.vision.datasets import pixels


def wait_for(file, child):
    for _ in range(2400):
        if file.exists():
            return
        assert os.waitpid(child, os.WNOHANG)[0] == 0, "the child ended early"
        time.sleep(0.05)


def own_lines(log):
    """What a run said that is an error, a warning or a traceback."""
    return [line for line in log.read_text().splitlines() if any(w in line for w in ("rror", "raceback", "arning", "topped"))]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = write_features(tmp_path_factory.mktemp("forked") / "features")
    preload(root)
    return root


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_goes_on(root, tmp_path, number, code):
    words = [*features_flags(root), "--steps", "60", "--checkpoint-every", "4", "--eval-every", "30", "--log"]
    if number == signal.SIGTERM:
        assert exit_code(fork_run([*words, str(tmp_path / "reference")], tmp_path / "reference.log")) == 0
    child = fork_run(
        [*words, str(tmp_path / "interrupted")], tmp_path / "interrupted.log", lambda: setattr(Stopper, "__init__", slow_init)
    )
    wait_for(tmp_path / "interrupted" / "checkpoints" / "last.pt", child)
    os.kill(child, number)
    assert exit_code(child) == code
    said = own_lines(tmp_path / "interrupted.log")
    step = load_checkpoint(tmp_path / "interrupted")["step"]
    assert said == [f"stopped after step {step}, saved in {tmp_path / 'interrupted'}; the same command goes on from there"]
    if number == signal.SIGTERM:
        assert exit_code(fork_run([*words, str(tmp_path / "interrupted")], tmp_path / "interrupted.log")) == 0
        assert read_outputs(tmp_path / "interrupted") == read_outputs(tmp_path / "reference")


def slow_init(self, whole=Stopper.__init__):
    """Slows the steps of a child down, so that a signal meets it at work."""
    whole(self)
    step = run_module._Training.after_step
    run_module._Training.after_step = lambda *args: (time.sleep(0.05), step(*args))[1]


def test_a_second_signal_stops_at_once(root, tmp_path):
    def sleepy():
        run_module._Training.save = lambda *args: ((tmp_path / "saving").touch(), time.sleep(600))

    child = fork_run([*features_flags(root), "--steps", "40", "--checkpoint-every", "1", "--log", str(tmp_path / "run")],
                   tmp_path / "log", sleepy)  # fmt: skip
    wait_for(tmp_path / "saving", child)
    os.kill(child, signal.SIGTERM)
    time.sleep(0.5)
    assert os.waitpid(child, os.WNOHANG)[0] == 0, "one signal lets it save"
    os.kill(child, signal.SIGTERM)
    assert exit_code(child) == 143


def test_torchruns_echo_of_a_signal_is_not_a_second_one(monkeypatch):
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with Stopper() as stopper:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stopper.signal == signal.SIGTERM and left == []
        monkeypatch.setattr(time, "monotonic", lambda: 1e12)
        os.kill(os.getpid(), signal.SIGTERM)
        assert left == [143]


def test_a_signal_to_the_whole_group_saves(root, tmp_path):
    write_images(tmp_path / "images")
    words = [*images_flags(tmp_path / "images"), "--steps", "400", "--checkpoint-every", "1", "-j", "1", "--cache", "off"]
    child = fork_run([*words, "--log", str(tmp_path / "run")], tmp_path / "log", os.setsid)
    wait_for(tmp_path / "run" / "checkpoints" / "last.pt", child)
    assert children(child) == []
    os.killpg(child, signal.SIGTERM)
    assert exit_code(child) == 143
    assert len(own_lines(tmp_path / "log")) == 1 and "stopped after step" in own_lines(tmp_path / "log")[0]


def children(process):
    """The child processes of a process."""
    with open(f"/proc/{process}/task/{process}/children") as file:
        return file.read().split()


def test_a_stop_is_answered_at_once_where_a_step_is_long(root, tmp_path):
    def long_step():
        run_module._Training.after_step = lambda *args: ((tmp_path / "step").touch(), time.sleep(600))

    child = fork_run([*features_flags(root), "--steps", "4", "--log", str(tmp_path / "run")], tmp_path / "log", long_step)
    wait_for(tmp_path / "step", child)
    os.kill(child, signal.SIGINT)
    for _ in range(200):
        if "stopping after this step; again to stop now\n" in (tmp_path / "log").read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError((tmp_path / "log").read_text())
    os.kill(child, signal.SIGINT)
    assert exit_code(child, 20) == 130


@pytest.mark.parametrize("command, more", [
    (features, ["--scratch", "-a", "small_cnn", "--out", "out"]), (audit, ["--scratch", "-a", "small_cnn", "--out", "out"]),
    (train, ["-d", "folder", "-s", "alpha", "-t", "beta", "-a", "small_cnn", "--cache", "off", "--no-report", "--log", "out"])],
    ids=["features", "audit", "train"])  # fmt: skip
def test_an_unreadable_image_ends_a_command_at_once(root, tmp_path, command, more):
    write_images(tmp_path / "images")
    (tmp_path / "images" / "alpha" / "red" / "3.png").write_bytes(b"no image")
    data = tmp_path / "images" / ("alpha" if command is audit else "")
    words = [str(data), "--image-size", "32", "-b", "4", "-j", "2", "--device", "cpu", *more]
    if command is audit:
        words.remove("--scratch")
        words += ["--weights", "none"]
    child = fork_run(words, tmp_path / "log", lambda: os.chdir(tmp_path), command.main)
    assert exit_code(child, 30) == 2
    (error,) = [line for line in (tmp_path / "log").read_text().splitlines() if "rror" in line or "raceback" in line]
    assert error.startswith("error: unreadable image ") and "3.png" in error


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_an_extraction_at_once_and_leaves_no_process(root, tmp_path, number, code):
    write_images(tmp_path / "images")

    def slow():
        os.chdir(tmp_path)
        whole = pixels.read_pixels
        pixels.read_pixels = lambda *args: ((tmp_path / "decoding").touch(), time.sleep(600), whole(*args))[2]

    words = [str(tmp_path / "images"), "--image-size", "32", "-j", "2", "-a", "small_cnn", "--scratch", "--out", "out"]
    child = fork_run(words, tmp_path / "log", slow, features.main)
    wait_for(tmp_path / "decoding", child)
    assert children(child) == []
    os.kill(child, number)
    assert exit_code(child, 20) == code


def test_a_closed_pipe_ends_the_log_and_not_the_run(root, tmp_path):
    read, write = os.pipe()
    os.close(read)

    def closed():
        os.dup2(write, 1)
        sys.stdout = os.fdopen(1, "w", buffering=1)

    words = [*features_flags(root), "--steps", "6", "--eval-every", "2", "--log", str(tmp_path / "run")]
    assert exit_code(fork_run(words, tmp_path / "log", closed)) == 0, (tmp_path / "log").read_text()
    os.close(write)
    assert (tmp_path / "run" / "results.json").exists() and own_lines(tmp_path / "log") == []


@pytest.mark.parametrize("limit", [300, 9000])
def test_a_full_disk_is_one_line_and_the_checkpoint_stays(root, tmp_path, limit):
    words = [*features_flags(root), "--steps", "12", "--checkpoint-every", "4", "--eval-every", "12"]
    words += ["--log", str(tmp_path / "run")]

    def dies():
        run_module._Training.evaluate = lambda *args: os._exit(9)

    assert exit_code(fork_run(words, tmp_path / "log", dies)) == 9
    kept = (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes()
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    torch.save({**state, "step": 4}, tmp_path / "run" / "checkpoints" / "last.pt")
    kept = (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes()
    assert len(kept) > 9000
    (tmp_path / "log").unlink()
    code = exit_code(fork_run(words, tmp_path / "log", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
    said = own_lines(tmp_path / "log") if limit > 300 else ["error: no disk space left"]  # 300 bytes: not even room for the log
    assert code == 1 and len(said) == 1 and said[0].startswith("error: no disk space left"), said
    assert (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes() == kept and not temporary_files(tmp_path / "run")
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_fresh_run_on_a_full_disk(root, tmp_path):
    words = [*features_flags(root), "--steps", "12", "--log", str(tmp_path / "run")]
    assert exit_code(fork_run(words, tmp_path / "log", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)))) == 1
    assert not (tmp_path / "run" / "config.json").exists() and not temporary_files(tmp_path / "run")


def test_the_file_without_room_is_named(tmp_path, capsys):
    def writes_into(error):
        def main():
            with files.atomic_path(tmp_path / "big.bin") as draft:
                draft.write_bytes(b"half")
                raise error

        return main

    for error in (OSError(28, "No space left on device"), OSError("1000 requested and 400 written"), OSError(122, "Quota")):
        assert run_main(writes_into(error)) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"error: no disk space left while writing {tmp_path / 'big.bin'}") and err.count("\n") == 1
    assert run_main(writes_into(PermissionError(13, "Permission denied", "there"))) == 2
    assert capsys.readouterr().err == "error: cannot use there: Permission denied\n"
    assert list(tmp_path.iterdir()) == []


def test_features_that_two_runs_need_are_extracted_once(root, tmp_path, monkeypatch):
    write_images(tmp_path / "images")
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    words = [*images_flags(tmp_path / "images"), "--steps", "2", "--freeze-backbone", "-j", "0", "--log"]

    def counting(whole=setup.features_of):
        def features_of(*args, **kwargs):
            with open(tmp_path / "count", "a") as file:
                file.write("x")
            time.sleep(0.5)
            return whole(*args, **kwargs)

        setup.features_of = features_of

    children = [fork_run([*words, str(tmp_path / name)], tmp_path / f"{name}.log", counting) for name in ("one", "two")]
    assert [exit_code(child) for child in children] == [0, 0], (tmp_path / "one.log").read_text()
    assert (tmp_path / "count").read_text() == "xx"  # source and target, by whoever came first
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (tmp_path / "two" / "model.safetensors").read_bytes()
