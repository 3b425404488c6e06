"""The README's first command on images, as it is printed there, on a machine that has neither the data nor the weights."""

import hashlib
import io
import json
import os
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from drawn_data import drawn_archives
from file_server import Answer, serve

from tllib_ext import compat
from tllib_ext.api import train
from tllib_ext.cli.main import main as tllib_ext_main
from tllib_ext.training.config import RunConfig
from tllib_ext.vision import transfer

COMMAND = re.search(r"^python examples/noisy_unida.py data/.*$", (ROOT / "README.md").read_text(), re.M)[0]
WORDS = shlex.split(COMMAND)[2:]


@pytest.fixture(scope="module")
def published():
    """What the two addresses serve: drawn Office-31, and random weights named by their digest, by network."""
    files = {f"/data/Office31/{file}": content for file, content in drawn_archives("Office31", each=2, side=24).items()}
    names = {}
    for name in ("mobilenet_v2", "resnet50"):
        buffer = io.BytesIO()
        torch.save(compat.torchvision().models.get_model(name, weights=None).state_dict(), buffer)
        names[name] = f"{name}-{hashlib.sha256(buffer.getvalue()).hexdigest()[:8]}.pth"
        files[f"/weights/{names[name]}"] = buffer.getvalue()
    return files, names


@pytest.fixture
def machine(published, tmp_path, monkeypatch):
    """``machine(arch)``: a machine without data and weights, on which every run is short; the file of the weights."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("TLLIB_EXT_OFFLINE")
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setattr(transfer, "TIMEOUT", 5.0)

    def weights(name):
        url = f"https://publisher.example/models/{published[1][name]}"
        return SimpleNamespace(IMAGENET1K_V1=SimpleNamespace(url=url))

    def start(arch="mobilenet_v2"):
        monkeypatch.setattr(compat.torchvision().models, "get_model_weights", weights)
        short = {"arch": arch, "steps": 2, "batch_size": 4, "image_size": 32, "workers": 0, "eval_every": 2}

        def train_shortly(config):
            given = config.changed()
            return train(replace(config, **{name: value for name, value in short.items() if name not in given}))

        monkeypatch.setattr("tllib_ext.api.train", train_shortly)
        return tmp_path / "torch" / "hub" / "checkpoints" / published[1][arch]

    return start


def addresses(monkeypatch, server):
    monkeypatch.setenv("TLLIB_EXT_DATA_URL", f"{server.url}/data")
    monkeypatch.setenv("TLLIB_EXT_WEIGHTS_URL", f"{server.url}/weights")


def run_folder(tmp_path):
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").stat().st_size > 1000
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("arch", ["mobilenet_v2", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_from_nothing_to_the_report(arch, machine, published, run_example, tmp_path, monkeypatch):
    file = machine(arch)
    with serve(published[0]) as server:
        addresses(monkeypatch, server)
        code, out, err = run_example("noisy_unida", *WORDS)
        assert code == 0, err
        assert len(server.requests) == 5
    lines = [line for line in err.splitlines() if line.startswith("downloading")]
    assert len(lines) == 5 and all(" to " in line and f"from {server.url}/" in line for line in lines)
    assert "\r" not in err  # a log file is not filled by bars
    assert run_folder(tmp_path)["source"] == "amazon" and file.exists()
    assert sorted(os.listdir(tmp_path / "data" / "office31")) == ["amazon", "dslr", "image_list", "webcam"]


def test_the_same_command_finishes_what_was_broken_off(machine, published, run_example, tmp_path, monkeypatch):
    file = machine()
    for plan in ([Answer(), Answer(send=500)], [Answer()] * 3 + [Answer(send=1000)]):
        with serve(published[0], plan, default=Answer(status=503)) as server:  # then it is stopped
            addresses(monkeypatch, server)
            code, _, err = run_example("noisy_unida", *WORDS)
        assert code == 2 and not (tmp_path / "runs").exists() and not file.exists()
        assert "the same command continues" in err.splitlines()[-1] and err.splitlines()[-1].startswith("error: ")
    with serve(published[0]) as server:
        addresses(monkeypatch, server)
        assert run_example("noisy_unida", *WORDS)[0] == 0
        assert [path.rpartition("/")[2] for path, wanted in server.requests] == [file.name]
        assert server.requests[0][1] == "bytes=1000-"  # all else was there
    run_folder(tmp_path)


def test_without_a_network_one_line_names_both(machine, run_example, tmp_path, monkeypatch):
    with serve({}) as server:
        pass
    file = machine()
    addresses(monkeypatch, server)
    before = sorted(tmp_path.rglob("*"))
    for words, reason in ((WORDS, "refused"), ([*WORDS, "--no-download"], "forbidden (--no-download)")):
        code, out, err = run_example("noisy_unida", *words)
        assert code == 2 and out == "" and err.count("\n") == 1 and reason in err
        assert f"bring {server.url}/weights/{file.name} to {file}" in err and "archives of Office31 into data/office31" in err
        assert sorted(tmp_path.rglob("*")) == before


def test_brought_files_need_no_network(machine, published, run_example, tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_OFFLINE", "1")
    file = machine()
    file.parent.mkdir(parents=True)
    file.write_bytes(published[0][f"/weights/{file.name}"])
    (tmp_path / "data" / "office31").mkdir(parents=True)
    for path, content in published[0].items():
        if path.startswith("/data/"):
            (tmp_path / "data" / "office31" / path.rpartition("/")[2]).write_bytes(content)
    assert run_example("noisy_unida", *WORDS)[0] == 0
    run_folder(tmp_path)


def test_a_mistake_shows_before_a_download(machine, published, run_example, monkeypatch):
    machine()
    with serve(published[0]) as server:
        addresses(monkeypatch, server)
        for words in (["-t", "X"], ["-a", "mobilenetv2"], ["-m", "divergance"], ["--hp", "etta=1"], ["--rate", "7"]):
            assert run_example("noisy_unida", *WORDS, *words)[0] == 2
        assert run_example("noisy_unida", "data/office31")[0] == 2
        assert server.requests == []


def test_the_flag_of_earlier_releases_says_that_it_is_not_needed(run_example, feature_root, capfd, tmp_path):
    words = (feature_root, "-s", "alpha", "-t", "beta", "--split", "3/2/1", "-b", "8", "--steps", "2", "--no-report")
    code, _, err = run_example("noisy_unida", *words, "--download")
    assert (
        code == 0 and err.count("--download is no longer needed: what is absent is downloaded; --no-download forbids it\n") == 1
    )
    code, _, err = run_example("noisy_unida", *words)
    assert code == 0 and "needed" not in err


def test_a_file_of_settings_may_forbid_it(machine, published, run_example, tmp_path, monkeypatch):
    machine()
    (tmp_path / "c.yaml").write_text("download: false\n")
    with serve(published[0]) as server:
        addresses(monkeypatch, server)
        code, _, err = run_example("noisy_unida", *WORDS, "-c", "c.yaml")
        assert code == 2 and "downloads are forbidden" in err and server.requests == []
    assert RunConfig(download=False).words() == ["--no-download"] and RunConfig().words() == []


def test_grids_fetch_once_before_their_cells(machine, published, run_example, tmp_path, monkeypatch, capfd):
    from tllib_ext.cli.parser import run_main

    file = machine()
    words = ["data/office31", "-s", "A", "-t", "D", "--methods", "source_only,dann", "-a", "mobilenet_v2", "--steps", "1"]
    words += ["-b", "4", "--image-size", "32", "-j", "0", "--out", "grid"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tllib_ext.experiments.compare.run_cells", lambda cells, *_: [(cell, "not run here") for cell in cells])
    with serve(published[0]) as server:
        addresses(monkeypatch, server)
        assert run_main(lambda: tllib_ext_main(["compare", *words, "--dry-run"])) == 0
        assert server.requests == [] and not (tmp_path / "data").exists()
        assert run_main(lambda: tllib_ext_main(["compare", *words, "--no-download"])) == 2
        assert server.requests == [] and sorted(os.listdir(tmp_path)) == []
        assert run_main(lambda: tllib_ext_main(["compare", *words])) == 1  # no cell was run
        assert len(server.requests) == 5 and file.exists() and (tmp_path / "data" / "office31" / "dslr").is_dir()


def test_features_are_of_all_domains(machine, published, tmp_path, monkeypatch):
    machine()
    monkeypatch.chdir(tmp_path)
    words = "features data/office31 --out f -a mobilenet_v2 --image-size 32 -b 64 -j 0".split()
    with serve(published[0]) as server:
        addresses(monkeypatch, server)
        assert tllib_ext_main(words) == 0 and len(server.requests) == 5
    assert sorted(os.listdir(tmp_path / "f")) == ["amazon.npz", "dslr.npz", "webcam.npz"]


def test_the_pages_print_the_command():
    assert re.fullmatch(r"python examples/noisy_unida.py data/office31 -s A -t D --noise pair --rate 0.2", COMMAND)
