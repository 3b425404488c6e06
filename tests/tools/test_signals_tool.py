"""Signals at random moments, as tools/signals.py sends them by the dozen."""

import pytest
from test_edit_runs import load_tool


@pytest.mark.slow
def test_no_process_is_left_and_the_same_command_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    found = load_tool("signals").stress(8, 1, tmp_path, ["train", "features", "audit", "compare"])
    assert found["bad"] == [] and sum(found["counts"].values()) == 8
