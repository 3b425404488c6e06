"""examples/compare.py: plans, runs, continues, fails in one cell only, and says what is wrong with its words."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tllib_ext.experiments import compare, pool, worker
from tllib_ext.experiments.grid import Cell
from tllib_ext.experiments.runner import cell_config, check_cells, read_records, run_cell, state_of
from tllib_ext.training.config import RunConfig
from tllib_ext.training.run_dir import Lock

SMALL = ("-d", "features", "--split", "3/2/1", "-b", "8", "--steps", "4", "--out", "out")
TWO = ("--tasks", "alpha:beta,gamma2beta", "--methods", "source_only,divergence", "--noise", "P20")


def inline(cells, out, jobs=1, keep=(), total=None):
    """The pool's work without its processes."""
    done = [(cell, run_cell(cell, Path(out), keep)[0]) for cell in cells]
    inline.ran = [cell.name for cell, _ in done]
    return [(cell, error) for cell, error in done if error is not None]


@pytest.fixture
def here(monkeypatch, blank_plots):
    monkeypatch.setattr(compare, "run_cells", inline)
    inline.ran = []


@pytest.mark.parametrize(
    "flags, kept", [((), ""), (("--tensorboard",), "tb"), (("--keep-models",), "checkpoints model.safetensors")]
)
def test_heavy_files_of_cells_are_kept_on_request(run_example, feature_root, tmp_path, here, flags, kept):
    words = (feature_root, *SMALL, "--tasks", "A2B", "--methods", "source_only", *flags)
    code, _, err = run_example("compare", *words, "--checkpoint-every", "2")
    assert code == 0, err
    (cell,) = (tmp_path / "out" / "cells").iterdir()
    heavy = {"tb", "checkpoints", "model.safetensors"}
    assert {file.name for file in cell.iterdir()} & heavy == set(kept.split())


def test_the_bar_of_a_grid_does_not_fill_a_log_file(capfd, monkeypatch):
    monkeypatch.setattr(pool, "_results", lambda cells, *words: ((cell, None, "OS 50.0") for cell in cells))
    cells = [Cell(f"cell{i}", {}, RunConfig()) for i in range(50)]
    pool.run_cells(cells, Path("out"))
    out, err = capfd.readouterr()
    assert err == "" and out.splitlines() == [f"cell{i}  OS 50.0" for i in range(50)]


def test_a_grid_gives_tables_and_continues(run_example, feature_root, tmp_path, here):
    words = (feature_root, *SMALL, *TWO, "--seeds", "0-1")
    code, out, err = run_example("compare", *words)
    assert code == 0, err
    assert len(inline.ran) == 8
    folder = tmp_path / "out" / "cells" / "gamma2beta_pair0.2_divergence_seed1"
    assert json.loads((folder / "results.json").read_text())["noise_seed"] == 0
    assert not (folder / "model.safetensors").exists() and not (folder / "checkpoints").exists()
    assert len((folder / "results.jsonl").read_text().splitlines()) == 4  # for the curves
    for suffix in ("csv", "md", "tex", "json", "html", "png"):
        assert (tmp_path / "out" / f"comparison.{suffix}").exists()
    assert (tmp_path / "out" / "curves.png").exists()
    assert "(2)" in out and "A2B" in out and "mean" in out and "last step of 4" in out
    # All there: nothing is run again; one is gone: one is.
    assert run_example("compare", *words)[0] == 0 and len(inline.ran) == 8
    inline.ran = []
    (folder / "results.json").unlink()
    code, out, _ = run_example("compare", *words)
    assert code == 0 and inline.ran == [folder.name]
    # Speed and place are not part of what a run is; steps are.
    inline.ran = []
    assert run_example("compare", *words, "-j", "0")[0] == 0 and inline.ran == []
    code, _, err = run_example("compare", *words, "--lr", "0.02")
    assert code == 2 and "lr: default there, 0.02 now" in err and inline.ran == []
    code, _, _ = run_example("compare", *words, "--lr", "0.02", "--overwrite")
    assert code == 0 and len(inline.ran) == 8


def test_the_noise_can_follow_the_seed(run_example, feature_root, tmp_path, here):
    words = ("-s", "al", "-t", "g", "-m", "source_only", "--seed", "3", "--noise-seed", "same")
    code, _, err = run_example("compare", feature_root, *SMALL, *words)
    assert code == 0, err
    results = json.loads((tmp_path / "out/cells/alpha2gamma_pair0.2_source_only_seed3/results.json").read_text())
    assert results["noise_seed"] == results["seed"] == 3


def test_a_failing_cell_is_told_and_stops_nobody(run_example, feature_root, tmp_path, here):
    # One head is refused by the method when its cell is built.
    words = (feature_root, *SMALL, "--tasks", "alpha:beta", "--methods", "divergence,source_only", "--hp", "heads=1")
    code, out, err = run_example("compare", *words)
    assert code == 1, err
    assert (
        "failed: alpha2beta_pair0.2_divergence_seed0: hyper-parameter heads=1" in out
        and "1 of 2 cells missing" in out
        and "—" in out
    )
    error = json.loads((tmp_path / "out/cells/alpha2beta_pair0.2_divergence_seed0/error.json").read_text())
    assert "traceback" in error
    inline.ran = []
    assert run_example("compare", *words)[0] == 1 and inline.ran == ["alpha2beta_pair0.2_divergence_seed0"]  # tried again
    assert json.loads((tmp_path / "out/comparison.json").read_text())["records"][0]["error"].startswith("hyper-parameter heads=1")


def test_dry_run_writes_nothing(run_example, feature_root, tmp_path, here):
    code, out, err = run_example("compare", feature_root, *SMALL, *TWO, "--seeds", "0-2", "--dry-run", "--jobs", "2")
    assert code == 0, err
    assert "12 of 12 cells to run" in out and "--jobs 2" in out and "alpha2beta_pair0.2_divergence_seed0  new" in out
    assert not (tmp_path / "out").exists() and inline.ran == []


def test_dry_run_without_data_is_about_glyphs(run_example):
    code, out, _ = run_example("compare", "--dry-run", "--methods", "source_only")
    assert code == 0 and "print2scene_pair0.2_source_only_seed0" in out


@pytest.mark.parametrize(
    "words, part",
    [
        (["--methods", "divergance"], "did you mean 'divergence'"),
        (["--tasks", "alpha2delta"], "unknown task 'alpha2delta'"),
        (["--tasks", "alpha2alpha"], "the same domain twice"),
        (["--noise", "pear:0.2"], "unknown noise"),
        (["--noise", "pair:1.5"], "the rate is a number"),
        (["--seeds", "one"], "--seeds 'one'"),
        (["--noise-seed", "x"], "expected a whole number up to 4294967295, or same"),
        (["--metric", "accurcy"], "did you mean 'accuracy'"),
        (["--hp", "foo=1", "--methods", "source_only"], "has foo=1"),
        (["--steps", "5", "--methods", "mixture"], "mixture is not trained; leave out --steps"),
        (["--lr", "0.1", "--methods", "mixture"], "mixture is not trained; leave out --lr"),
        (["--preset", "paper", "--methods", "source_only"], "has --preset"),
        (["-s", "alpha"], "belong together"),
        (["-s", "alpha", "-t", "beta", "--tasks", "all"], "not both"),
        (["--jobs", "0"], "--jobs"),
        (["--phase", "test"], "unknown flag --phase"),
    ],
)
def test_bad_words_are_one_line(run_example, feature_root, tmp_path, words, part):
    code, _, err = run_example("compare", feature_root, "-d", "features", *words)
    assert code == 2 and part in err and len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_options_go_to_the_methods_that_have_them(run_example, feature_root, tmp_path, here):
    code, _, err = run_example("compare", feature_root, *SMALL, "--tasks", "alpha:beta", "--methods",
                               "source_only,divergence,mixture", "--hp", "n=1", "--unknown-rule", "confidence",
                               "--lr", "0.02")  # fmt: skip
    assert code == 0, err
    cells = tmp_path / "out/cells"
    config = {name: json.loads((cells / f"alpha2beta_pair0.2_{name}_seed0/config.json").read_text())
              for name in ("source_only", "divergence", "mixture")}  # fmt: skip
    assert [config[name]["steps"] for name in ("source_only", "mixture")] == [4, 1]
    assert [config[name]["lr"] for name in ("source_only", "mixture")] == [0.02, 0.01]
    assert config["divergence"]["hparams"]["n"] == 1 and config["source_only"]["hparams"]["unknown_rule"] == "confidence"
    assert config["divergence"]["unknown_rule"] is None and "n" not in config["source_only"]["hparams"]


def a_cell(name, **settings):
    return Cell(name, {"row": name, "task": "T", "noise": "clean", "seed": 0}, RunConfig(method="source_only", **settings))


def test_states_of_a_folder(tmp_path):
    cell, folder = a_cell("x", steps=3), tmp_path / "cells" / "x"
    assert state_of(cell, tmp_path) == "new"
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text(json.dumps({"settings": cell.config.changed()}))
    assert state_of(cell, tmp_path) == "begun"
    (folder / "error.json").write_text('{"error": "e"}')
    assert state_of(cell, tmp_path) == "failed" and read_records([cell], tmp_path)[0]["error"] == "e"
    (folder / "results.json").write_text('{"os": 0.5')  # torn
    assert state_of(cell, tmp_path) == "failed"
    (folder / "results.json").write_text('{"os": 0.5, "row": "theirs"}')
    assert state_of(cell, tmp_path) == "finished" and check_cells([cell], tmp_path) == []
    assert read_records([cell], tmp_path)[0]["os"] == 0.5 and read_records([cell], tmp_path)[0]["row"] == "x"
    assert state_of(a_cell("x", steps=3, workers=7), tmp_path) == "finished"
    assert state_of(a_cell("x", steps=4), tmp_path) == "other"


def test_a_cell_can_be_repeated_by_hand(feature_root, tmp_path):
    from tllib_ext.cli.parser import Parser, add_run_arguments, parse_run

    cell = a_cell("x", root=str(feature_root), hparams={"temperature": "0.1"}, steps=3, scratch=True, noise="pair", rate=0.3)
    parser = Parser()
    add_run_arguments(parser)
    parsed, made = parse_run(parser, cell.config.words()), cell_config(cell, tmp_path)
    inside = dict(log=None, eval_every=None, checkpoint_every=None, no_report=False)
    assert parsed == cell.config == replace(made, **inside)


# ---- the pool, with workers that pretend


def _pretend(connection, out, keep, threads, parent):
    while True:
        try:
            cell = connection.recv()
        except EOFError:
            return
        if cell.name == "dies":
            os._exit(7)
        if cell.name == "long":
            time.sleep(60)
        connection.send(("broken" if cell.name == "fails" else None, f"by {os.getpid()}"))


@pytest.fixture
def processes(monkeypatch):
    """The workers that were started."""
    started, start = [], pool._start
    monkeypatch.setattr(pool, "serve", _pretend)
    monkeypatch.setattr(pool, "_start", lambda *args: started.append(start(*args)) or started[-1])
    return started


def test_workers_live_long_and_die_alone(processes, tmp_path, capsys):
    cells = [a_cell(name) for name in ("one", "two", "dies", "three", "fails", "four")]
    failed = {cell.name: error for cell, error in pool.run_cells(cells, tmp_path, jobs=1)}
    assert failed == {"dies": "its process died (exit code 7)", "fails": "broken"}
    assert len(processes) == 2  # one for all cells, and one in place of the dead
    assert json.loads((tmp_path / "cells/dies/error.json").read_text())["error"] == failed["dies"]
    assert "four  by" in capsys.readouterr().out
    assert not any(process.is_alive() for process, _ in processes)


def test_an_interrupt_ends_the_workers(processes, tmp_path, monkeypatch):
    def interrupt(text):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool.tqdm, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.run_cells([a_cell("long"), a_cell("short"), a_cell("never")], tmp_path, jobs=2)
    assert len(processes) == 2 and not any(process.is_alive() for process, _ in processes)


def test_a_worker_does_not_outlive_its_parent():
    """Whatever its main thread does: it hangs here, and does not hear signals."""
    read, write = os.pipe()
    parent = os.fork()
    if not parent:
        parent = os.getpid()
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            worker.PATIENCE = 0.1
            threading.Thread(target=worker._watch, args=(parent,), daemon=True).start()
            os.write(write, str(os.getpid()).encode())
            time.sleep(60)
        time.sleep(0.3)
        os._exit(0)
    left = int(os.read(read, 20))
    os.waitpid(parent, 0)
    deadline = time.monotonic() + 20
    with suppress(OSError):  # it is gone
        while Path(f"/proc/{left}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_real_workers(run_example, feature_root, tmp_path):
    code, out, err = run_example("compare", feature_root, *SMALL, "--tasks", "alpha:beta", "--methods", "source_only,divergence",
                                 "--hp", "heads=1", "--keep-models")  # fmt: skip
    assert code == 1, err
    assert "source_only_seed0  OS" in out and "divergence_seed0  failed: hyper-parameter heads=1" in out
    folder = tmp_path / "out/cells/alpha2beta_pair0.2_source_only_seed0"
    assert (folder / "model.safetensors").exists() and "label noise: pair 0.2" in (folder / "log.txt").read_text()
    assert json.loads((folder / "env.json").read_text())["threads"] == 1


def test_two_grids_in_one_folder_do_not_meet(run_example, feature_root, tmp_path, here):
    words = (feature_root, *SMALL, "--tasks", "alpha:beta", "--methods", "source_only")
    assert run_example("compare", *words)[0] == 0
    folder = tmp_path / "out" / "cells" / "alpha2beta_pair0.2_source_only_seed0"
    before = (folder / "results.json").read_bytes()
    lock = Lock(tmp_path / "out")
    code, _, err = run_example("compare", *words, "--lr", "0.02", "--overwrite")
    assert code == 2 and "in use by another" in err and (folder / "results.json").read_bytes() == before
    lock.release()
    lock = Lock(folder)  # somebody continues this cell by hand
    code, _, err = run_example("compare", *words, "--lr", "0.02", "--overwrite")
    assert code == 2 and "in use by another" in err and (folder / "results.json").read_bytes() == before
    lock.release()
    (folder / "results.json").unlink()  # unfinished, of other settings: refused as a single run refuses it
    code, _, err = run_example("compare", *words, "--lr", "0.02")
    assert code == 2 and "lr: default there, 0.02 now" in err and (folder / "config.json").exists()


def test_cells_of_the_last_release_are_finished(tmp_path):
    folder = tmp_path / "cells" / "x"
    folder.mkdir(parents=True)
    old = {"method": "source_only", "hp": ["temperature=0.1"], "bottleneck": 16, "steps": 3, "noise": "pair", "rate": 0.2}
    (folder / "cell.json").write_text(json.dumps({"settings": old}))
    (folder / "results.json").write_text('{"os": 0.5}')
    cell = a_cell("x", hparams={"temperature": 0.1}, bottleneck_dim=16, steps=3, noise="pair")
    assert state_of(cell, tmp_path) == "finished"
    assert state_of(a_cell("x", hparams={"temperature": 0.2}, bottleneck_dim=16, steps=3, noise="pair"), tmp_path) == "other"
