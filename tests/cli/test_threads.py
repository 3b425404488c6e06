"""The number of threads: what the process may use, set before torch is loaded, never by an import."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from tllib_ext.cli import threads
from tllib_ext.cli.threads import available_cores


@pytest.mark.parametrize(
    "own, files, cores",
    [
        ("0::/job/step", {"job/cpu.max": "250000 100000", "job/step/cpu.max": "max 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/of/the/host", {"cpu.max": "300000 100000"}, 3),
        ("4:memory:/x\n3:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "200000", "cpu/job/cpu.cfs_period_us": "100000"}, 2),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("0::/", {"cpu.max": "damaged"}, 8),
    ],
)
def test_cores_are_those_of_affinity_and_quota(own, files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "self").write_text(own)
    assert available_cores(tmp_path, tmp_path / "self") == cores
    assert available_cores(tmp_path, tmp_path / "absent") == 8


def test_a_command_sets_the_variables_and_an_import_does_not():
    code = """
import os, sys
import tllib_ext, tllib_ext.training.config, tllib_ext.cli.train
assert "OMP_WAIT_POLICY" not in os.environ and "torch" not in sys.modules
from tllib_ext.cli.parser import run_main
def main():
    import torch
    print(os.environ["OMP_WAIT_POLICY"], os.environ["OMP_NUM_THREADS"], torch.get_num_threads())
run_main(main)
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "OPENBLAS_"))}
    for more, expected in (({}, str(available_cores())), ({"OMP_NUM_THREADS": "1"}, "1")):
        done = subprocess.run([sys.executable, "-c", code], env={**env, **more}, cwd=ROOT, capture_output=True, text=True)
        assert done.stdout.split() == ["PASSIVE", expected, expected], done.stderr


def test_processes_of_torchrun_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    threads.set_thread_defaults()
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_threads_of_a_run(run_example, feature_root, tmp_path):

    import torch

    before = torch.get_num_threads()
    try:
        words = "-s alpha -t beta --split 3/2/1 -b 8 --steps 1 --no-report --log run --threads 3".split()
        assert run_example("noisy_unida", feature_root, *words)[0] == 0
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("words", [["--threads", "5000"], ["-c", "run.yaml"]])
def test_more_threads_than_a_machine_has_are_refused(run_example, feature_root, tmp_path, words):
    (tmp_path / "run.yaml").write_text("threads: 100000\n")
    code, _, err = run_example("noisy_unida", feature_root, "-s", "alpha", "-t", "beta", *words)
    assert code == 2 and "expected a whole number, 1 or more, at most 256" in err and err.count("\n") == 1
