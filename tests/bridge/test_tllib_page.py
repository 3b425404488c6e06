"""docs/tllib.md: its blocks run on the stand-in, its table names what the registries have."""

import json
import re
import shlex
import sys

import pytest
import standin
from conftest import ROOT, shortened
from test_compat import python

checkout, office31, tllib = standin.checkout, standin.office31, standin.tllib
PAGE = (ROOT / "docs" / "tllib.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture
def folder(office31, tmp_path, monkeypatch):
    """A working folder with data/office31."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "office31").symlink_to(office31)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, folder, tllib, capsys, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(folder / "cache"))
    names = {}
    exec(compile(shortened(code), "docs/tllib.md", "exec"), names)
    if "NoisyUniversalOffice31Source" in code:
        assert capsys.readouterr().out.startswith("20 unknown ")
    if "train(config" in code:
        assert names["run"].results["split"] == "10/10/11" and names["run"].results["num_images"] == 63
        record = json.loads((names["run"].folder / "config.json").read_text())["objects"]
        assert record["source"]["class"] == "tllib.vision.datasets.office31.Office31" and record["source"]["length"] == 93
        assert record["backbone"]["class"] == "tllib.vision.models.Net" and names["saved"].crop == 64


@pytest.mark.slow
def test_the_command_runs(checkout, folder):
    (command,) = blocks("bash")
    words = shlex.split(command.replace("PATH", str(checkout / "examples" / "domain_adaptation" / "image_classification")))
    assert words[0] == "python"
    done = python(*words[1:], "--log", folder / "log", cwd=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "dann (target-model)" in done.stdout and (folder / "log" / "open_set.json").is_file()


def test_the_table_of_names(tllib):
    from tllib_ext.tllib import register

    register()
    for module, names in re.findall(r"^\| `(tllib\.vision[.\w]*)` \| (.*?) \|$", PAGE, re.M):
        for name in re.findall(r"`(\w+)`", names):
            assert name.replace("NAME", "Office31") in vars(sys.modules[module]), (module, name)
