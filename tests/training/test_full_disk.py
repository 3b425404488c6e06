"""A disk that is full for one file of a run: one line that names the file, exit code 1, no wait; then the run continues."""

import builtins
import io
import os

import pytest
from forked_runs import exit_code, features_flags, fork_run, preload, temporary_files, write_features

#: the files of a run with its report, in the order of writing
FILES = ("config.json", "env.json", "last.pt", "results.jsonl", "events.out", "model.safetensors", "predictions.csv",
         "suspects.csv", "pred_probs.npy", "labels.npy", "label_model.json", "transition.csv", "tsne.csv",
         "target_model.json", "answer_space.safetensors", "training.png", "density.png", "report.html",
         "results.json")  # fmt: skip
#: these stand for the others in the default run
QUICK = ("last.pt", "events.out", "results.json")


def full_for(name):
    """Writing the file ``name`` goes to /dev/full, in this process."""
    whole = builtins.open

    def opened(file, mode="r", *args, **kwargs):
        own = os.path.basename(os.fsdecode(file)) if isinstance(file, (str, bytes, os.PathLike)) else ""
        matches = own == name or own.startswith((f".{name}.", "events.out") if name == "events.out" else f".{name}.")
        return whole("/dev/full" if matches and mode[0] in "wax" else file, mode, *args, **kwargs)

    builtins.open = io.open = opened


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = write_features(tmp_path_factory.mktemp("forked") / "features")
    preload(root)
    return root


def command(root, folder, *more):
    return [*(word for word in features_flags(root) if word != "--no-report"), "--steps", "4", "--eval-every", "2", "--log",
            str(folder), *more]  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FILES])
def test_no_file_hangs_a_run(root, tmp_path, name):
    more = ("--no-report",) if name in QUICK else ()
    folder = tmp_path / "run"
    assert exit_code(fork_run(command(root, folder, *more), tmp_path / "log", lambda: full_for(name))) == 1
    said = [line for line in (tmp_path / "log").read_text().splitlines() if "rror" in line or "raceback" in line]
    where = "tb" if name == "events.out" else name
    assert len(said) == 1 and said[0].startswith("error: no disk space left while writing ") and f"{where}: " in said[0], said
    assert not temporary_files(folder) and not (folder / "results.json").exists()
    if not more:
        assert exit_code(fork_run(command(root, folder), tmp_path / "log")) == 0
        assert (folder / "results.json").exists() and (folder / "report.html").exists()


@pytest.mark.slow
def test_every_file_is_in_the_list(root, tmp_path):
    assert exit_code(fork_run(command(root, tmp_path / "run"), tmp_path / "log")) == 0
    found = {file.name for file in (tmp_path / "run").rglob("*") if file.is_file() and file.suffix != ".png"}
    found = {"events.out" if name.startswith("events.out") else name for name in found} - {".lock"}
    assert found == {name for name in FILES if not name.endswith(".png")}
