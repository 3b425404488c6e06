"""Files of others: none of them runs code, reaches outside or opens a connection."""

import ast
import errno
import importlib.util
import os
import pickle
import re
import socket
import subprocess
import sys
import zipfile
from urllib.error import URLError

import numpy as np
import pytest
import torch
from conftest import ROOT

from tllib_ext.cli.yaml_file import read_yaml
from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.io import escape_formula, unescape_formula
from tllib_ext.training.checkpoint import load_checkpoint
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import settings_of
from tllib_ext.vision.datasets.imagelist import FeatureList
from tllib_ext.vision.models.providers import read_state

SOURCES = sorted([*(ROOT / "tllib_ext").rglob("*.py"), *(ROOT / "examples").glob("*.py")])


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return open, (self.file, "w")


def test_pickles_do_not_run(tmp_path):
    trap = Trap(tmp_path / "sprung")
    (tmp_path / "checkpoints").mkdir()
    torch.save({"format": 1, "step": trap}, tmp_path / "checkpoints" / "last.pt")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"x": trap}))
    torch.save({"state_dict": {"x": trap}}, tmp_path / "torch.pth")
    np.savez(tmp_path / "f.npz", features=np.ones((2, 2)), classes=np.array([trap], dtype=object))
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        load_checkpoint(tmp_path)
    for name in ("plain.pth", "torch.pth"):
        with pytest.raises(UserError, match="cannot read the weights"):
            read_state(tmp_path / name)
    with pytest.raises(UserError, match="cannot read features"):
        FeatureList(tmp_path / "f.npz")
    assert not (tmp_path / "sprung").exists()


def test_an_archive_larger_than_memory_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", b"\0" * 1000)
    data = bytearray((tmp_path / "bomb.npz").read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = b"\xfe\xff\xff\xff"  # says that it unpacks to 4 GiB
    (tmp_path / "bomb.npz").write_bytes(data)
    real = os.sysconf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sysconf", lambda name: 1 << 10 if name == "SC_PHYS_PAGES" else real(name))
        with pytest.raises(UserError, match="more than this machine's memory"):
            FeatureList(tmp_path / "bomb.npz")


@pytest.mark.parametrize("text", [
    "a: &a [1]\nhp: [*a]\n", "<<: *x\n", "hp: " + "[" * 9 + "]" * 9, "hp: " + "{a: " * 9 + "1" + "}" * 9,
    "hp: !!python/object/apply:os.system [touch sprung]\n", "hp: !!python/name:os.system\n", "!!map {noise: !!foo pair}\n",
    "steps: " + "9" * 5000, "noise: pair\n" + "x: 1\n" * 20_000,
])  # fmt: skip
def test_configurations_that_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError, match="c.yaml"):
        read_yaml("c.yaml", settings_of(RunConfig))
    assert sorted(os.listdir(tmp_path)) == ["c.yaml"]


def test_no_image_starts_ghostscript(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a program was started"))
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(UserError, match="unreadable image"):
        load_image(tmp_path / "x.png")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "'=1", "plain", "", "a=1"])
def test_cells_are_no_formulas_and_come_back(text):
    assert unescape_formula(escape_formula(text)) == text
    assert escape_formula(text)[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n")


def calls(file):
    """Names of everything a source file calls, with the keywords given."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


def test_the_sources_call_nothing_dangerous():
    for file in SOURCES:
        for name, words in calls(file):
            where = f"{file.name}: {name}({words})"
            assert name not in ("eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load"), where
            assert words.get("shell") in (None, "False"), where
            assert not name.startswith(("urllib", "requests", "http.", "socket.create")), where
            assert name not in ("urlopen", "Request", "urlretrieve") or file.name == "transfer.py", where
            if name == "torch.load":
                assert words.get("weights_only") == "True", where
            if name == "np.load":
                assert words.get("allow_pickle") == "False", where
            if name in ("np.save", "numpy.save"):
                assert words.get("allow_pickle") in (None, "False"), where


def test_no_connection_where_downloads_are_forbidden(run_example, feature_root, image_root, tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: tried.append(address) or pytest.fail(str(address)))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    words = ("-s", "alpha", "-t", "beta", "--split", "3/2/1", "-b", "8", "--steps", "2", "--no-report", "--log", "run")
    assert run_example("noisy_unida", feature_root, *words)[0] == 0
    for arch in ("resnet18", *(["timm:resnet18"] if importlib.util.find_spec("timm") else [])):
        words = (image_root, "-s", "photo", "-t", "sketch", "-b", "4", "-a", arch)
        code, _, err = run_example("noisy_unida", *words)
        assert code == 2 and "downloads are forbidden (TLLIB_EXT_OFFLINE=1)" in err and err.count("\n") == 1
        with monkeypatch.context() as patch:
            patch.delenv("TLLIB_EXT_OFFLINE")
            code, _, err = run_example("noisy_unida", *words, "--no-download")
        assert code == 2 and "downloads are forbidden (--no-download)" in err and err.count("\n") == 1
    assert tried == []


@pytest.mark.parametrize("arch", ["resnet18", "timm:resnet18"])
def test_a_download_without_a_network_is_one_line(arch, run_example, image_root, tmp_path, monkeypatch):
    def unreachable(*args, **kwargs):
        raise URLError(OSError(errno.ENETUNREACH, "no network"))

    monkeypatch.delenv("TLLIB_EXT_OFFLINE")
    monkeypatch.setattr("tllib_ext.vision.transfer.urlopen", unreachable)
    monkeypatch.setattr("tllib_ext.vision.transfer.PAUSE", 0.0)
    if arch.startswith("timm:"):
        pytest.importorskip("timm")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    code, _, err = run_example("noisy_unida", image_root, "-s", "photo", "-t", "sketch", "-b", "4", "-a", arch)
    assert code == 2 and err.count("\n") == 1
    assert "no network" in err and "--weights FILE" in err and not (tmp_path / "torch").exists()


def test_names_that_command_a_terminal_are_escaped(run_example, tmp_path):
    code, _, err = run_example("noisy_unida", tmp_path / "a\x1b[2Jb\nc", "-s", "A", "-t", "D")
    assert code == 2 and "\x1b" not in err and len(err.splitlines()) == 1 and "\\x1b[2Jb c" in err


def test_a_reader_that_leaves_is_no_traceback(feature_root):
    code = "import sys; from tllib_ext.errors import run_main\n" \
           "sys.exit(run_main(lambda: [print('x' * 99) for _ in range(9999)] and 0))"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
    assert process.returncode == 141 and not re.search("Traceback|BrokenPipe", err), err


def test_state_dicts_of_safetensors(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "w.safetensors")
    assert torch.equal(read_state(tmp_path / "w.safetensors")["a"], torch.ones(2))
    (tmp_path / "w.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UserError, match="cannot read the weights"):
        read_state(tmp_path / "w.safetensors")
