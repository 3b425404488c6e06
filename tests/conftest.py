"""Shared fixtures: small data on disk, and the example scripts as functions."""

import importlib.util
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: threads cost more than they give
os.environ["TLLIB_EXT_OFFLINE"] = "1"  # what a test downloads comes from a server that it starts
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the commands do: tests with two threads run beside other processes

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine")


def browse(*words, page):
    """Load a page in a headless browser and return what it printed."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-web-security", "--enable-logging=stderr",
               "--virtual-time-budget=10000", f"--user-data-dir={page.parent / 'profile'}", *words, page.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


@pytest.fixture
def blank_plots(monkeypatch):
    """Plots of pages are small and empty: drawing them takes longer than a short run."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "png")
    for module in ("report.style", "experiments.compare"):
        monkeypatch.setattr(f"tllib_ext.{module}.png_bytes", lambda figure: buffer.getvalue())


def shortened(code):
    """A Python block of a page; its runs take one step."""
    return code.replace("RunConfig(", "RunConfig(steps=1, no_report=True, ")


def without_refused(words, method):
    """Flags of a run without those that ``method`` refuses because it is not trained."""
    from tllib_ext.methods import METHODS
    from tllib_ext.training.config import RunConfig
    from tllib_ext.training.resolve import OF_TRAINING
    from tllib_ext.training.setting import settings_of

    if not METHODS.get(method).training_free:
        return list(words)
    refused = {flag for name in ("steps", *OF_TRAINING) for flag in settings_of(RunConfig)[name].flags}
    return [word for word, before in zip(words, [None, *words]) if word not in refused and before not in refused]


def load_example(name):
    """``examples/NAME.py`` as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_example(monkeypatch, capfd, tmp_path):
    """``run_example(name, *words)`` -> (exit code, stdout, stderr), in an empty working folder."""
    from tllib_ext.cli.parser import run_main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        capfd.readouterr()
        try:
            code = run_main(load_example(name).main)
        except SystemExit as error:
            code = error.code
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="session")
def feature_root(tmp_path_factory):
    """Three domains of blobs in 8 dimensions, six classes, as ``.npz`` files."""
    root, rng = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    centres = rng.normal(size=(6, 8)) * 2
    names = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])
    for shift, domain in enumerate(["alpha", "beta", "gamma"]):
        labels = np.repeat(np.arange(6), 12)
        features = centres[labels] + 0.4 * rng.normal(size=(72, 8)) + 0.3 * shift
        paths = np.array([f"{domain}/{names[y]}/{i}.png" for i, y in enumerate(labels)])
        np.savez(root / f"{domain}.npz", features=features.astype(np.float32), labels=labels, classes=names, paths=paths)
    return root


@pytest.fixture(scope="session")
def image_root(tmp_path_factory):
    """Two domains of coloured squares in class folders, and one without classes."""
    from PIL import Image

    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    colours = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200), "grey": (120, 120, 120)}
    for domain, classes in (("photo", ("red", "green", "blue")), ("sketch", ("red", "green", "grey"))):
        for name in classes:
            (root / domain / name).mkdir(parents=True)
            for i in range(8):
                pixels = np.array(colours[name]) + rng.integers(-25, 25, (20, 24, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / domain / name / f"{i}.png")
    (root / "new").mkdir()
    for i in range(6):
        Image.fromarray(rng.integers(0, 255, (20, 24, 3)).astype(np.uint8)).save(root / "new" / f"{i}.png")
    return root
