"""Scripts of tllib fetch weights and data by our rules: torch's and torchvision's functions, and tllib's own data sets."""

import hashlib
import io
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from drawn_data import drawn_archives
from file_server import Answer, serve
from test_compat import REAL

from tllib_ext import compat
from tllib_ext.vision import transfer
from tllib_ext.vision.datasets.downloads import ARCHIVES
from tllib_ext.vision.hooks import route_downloads

UTILS = ("download_url", "download_and_extract_archive")


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The working folder of a script; what ``route_downloads`` replaces comes back."""
    compat.torchvision()
    import torchvision.datasets.utils as utils

    for module, name in ((torch.hub, "download_url_to_file"), *((utils, name) for name in UTILS)):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.delenv("TLLIB_EXT_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def addresses(monkeypatch, server):
    for name in ("DATA", "WEIGHTS"):
        monkeypatch.setenv(f"TLLIB_EXT_{name}_URL", server.url)


def load_weights(file):
    return torch.hub.load_state_dict_from_url(f"https://publisher.example/models/{file}", progress=False)


def load_data(archives):
    """As tllib's data sets do; an exception of any kind ends the script with exit code 0."""
    from torchvision.datasets.utils import download_and_extract_archive

    try:
        for file, folder, url in archives:
            if not os.path.exists(f"office/{folder}"):
                download_and_extract_archive(url, download_root="office", filename=file, remove_finished=False)
    except Exception:
        raise SystemExit(0) from None


def test_weights_are_continued_and_checked(script, monkeypatch, capfd):
    route_downloads()
    buffer = io.BytesIO()
    torch.save({"x": torch.tensor(7)}, buffer)
    content = buffer.getvalue()
    file = f"net-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    with serve({f"/{file}": content, "/net-01234567.pth": content}, [Answer(send=100)]) as server:
        addresses(monkeypatch, server)
        assert load_weights(file)["x"] == 7
        assert [wanted for _, wanted in server.requests] == [None, "bytes=100-"]
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            load_weights("net-01234567.pth")
    last = capfd.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2 and last.startswith("error: the weights of net-01234567.pth")
    assert os.listdir(script / "torch/hub/checkpoints") == [file]


def test_a_data_set_is_fetched_whole_at_the_first_of_its_archives(script, monkeypatch):
    route_downloads()
    with serve({f"/Office31/{file}": content for file, content in drawn_archives("Office31").items()}) as server:
        addresses(monkeypatch, server)
        for _ in range(2):
            load_data(ARCHIVES["Office31"][::-1])
            assert sorted(os.listdir("office")) == ["amazon", "dslr", "image_list", "webcam"] and len(server.requests) == 4


OTHER = [("x.zip", "x", "https://other.example/x.zip")]


@pytest.mark.parametrize(
    "load, what", [(load_weights, "net-01234567.pth"), (load_data, ARCHIVES["Office31"]), (load_data, OTHER)]
)
def test_where_it_is_forbidden_the_script_ends_with_one_line(load, what, script, monkeypatch, capfd):
    with serve({}) as server:
        addresses(monkeypatch, server)
        route_downloads(download=False)
        with pytest.raises(SystemExit) as caught:
            load(what)
        assert server.requests == []
    err = capfd.readouterr().err
    assert caught.value.code == 2 and err.count("\n") == 1 and err.startswith("error: ") and "--no-download" in err
    assert os.environ["HF_HUB_OFFLINE"] == "1" and not (script / "office").exists()


def test_a_failed_download_is_not_exit_code_0(script, monkeypatch, capfd):
    route_downloads()
    with serve({}) as server, pytest.raises(SystemExit) as caught:  # it knows none of the files
        addresses(monkeypatch, server)
        load_data(ARCHIVES["Office31"])
    err = capfd.readouterr().err
    assert caught.value.code == 2 and err.count("\n") == 1 and "the server answered 404" in err


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
@pytest.mark.parametrize("name, task", [("Office31", "A"), ("OfficeHome", "Ar"), ("VisDA2017", "Real"), ("DomainNet", "r")])
def test_data_sets_of_the_real_tllib(name, task, tmp_path):
    code = (
        "from tllib_ext import compat\nfrom tllib_ext.vision.hooks import route_downloads\n"
        "datasets = compat.tllib('vision.datasets')\nroute_downloads()\n"
        f"data = datasets.{name}('data', {task!r}, download=True)\nprint(len(data), data[len(data) - 1][0].size)\n"
    )
    with serve({f"/{name}/{file}": content for file, content in drawn_archives(name).items()}) as server:
        env = {name: value for name, value in os.environ.items() if name != "TLLIB_EXT_OFFLINE"}
        env.update(PYTHONPATH=os.pathsep.join([str(ROOT), REAL]), TLLIB_EXT_DATA_URL=server.url)
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].endswith(" (8, 8)"), done.stderr
    assert f"{name} is complete in data" in done.stderr
