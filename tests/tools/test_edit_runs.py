"""Random edits of a run folder, as tools/edit_runs.py makes by the thousand."""

import importlib.util

import pytest
from conftest import ROOT


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_command_answers_after_an_edit(tmp_path, monkeypatch):
    from tllib_ext.report import style

    monkeypatch.setattr(style, "png_bytes", style.png_bytes)  # restores what the script replaces
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    found = load_tool("edit_runs").stress(40, 1, tmp_path)
    assert found["bad"] == [] and sum(found["commands"].values()) == 160
    for command in ("report", "select", "evaluate", "predict"):
        assert found["commands"][f"{command}: result"] > 0 and found["commands"][f"{command}: one line"] > 0
