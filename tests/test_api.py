"""The package from Python: lazy names, and train() with what it returns."""

import subprocess
import sys

import pytest
from conftest import ROOT

import tllib_ext
from tllib_ext.errors import UserError


def test_import_is_quick_and_loads_nothing_heavy():
    code = "import time, sys; start = time.perf_counter(); import tllib_ext; took = time.perf_counter() - start\n" \
           "assert not {'torch', 'numpy', 'sklearn', 'matplotlib'} & set(sys.modules); print(took)"  # fmt: skip
    took = [float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
            for _ in range(3)]  # fmt: skip
    assert min(took) < 0.1


def test_public_names_are_there():
    for name in tllib_ext.__all__:
        assert getattr(tllib_ext, name) is not None and name in dir(tllib_ext)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(tllib_ext, "Nothing")  # noqa: B009


def test_a_run_from_python(feature_root, tmp_path, monkeypatch, blank_plots):
    from tllib_ext import RunConfig, train

    monkeypatch.chdir(tmp_path)
    config = RunConfig(root=feature_root, source="alpha", target="beta", split="3/2/1", noise="pair", rate=0.2, steps=4,
                       batch_size=8, bottleneck_dim=8, hparams={"n": 2}, log="run")  # fmt: skip
    run = train(config)
    assert run.folder.name == "run" and (run.folder / "report.html").exists()
    assert run.results["os"] == run.report.flat()["os"] and run.config.steps == 4 and run.config.eval_every == 1
    assert len(run.predictions.index) == 72 - 2 * 12 and len(run.suspects.given) == 60
    assert not run.method.training and run.method.hparams.n == 2
    with pytest.raises(UserError, match="finished run: add overwrite=True"):
        train(config)
