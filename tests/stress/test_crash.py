"""Power cuts at file operations of a run with its report; ``python tests/stress/stress.py crash`` goes through all of them."""

import pytest
from crash_points import CRASHED, command, count_operations, crash_at, draw_blank_plots, is_complete, outputs, run_in
from forked_runs import preload, write_features


@pytest.mark.slow
def test_a_run_continues_after_power_cuts(tmp_path, monkeypatch):
    from tllib_ext.report import style

    monkeypatch.setattr(style, "png_bytes", style.png_bytes)  # restores what draw_blank_plots replaces
    features = write_features(tmp_path / "features")
    preload(features, report=True)
    draw_blank_plots()
    assert run_in(tmp_path / "calm", command(features), count_operations(tmp_path / "count")) == 0
    total = len((tmp_path / "count").read_text().split())
    assert total > 100
    for point in (total // 2, total - 30, total - 4, total):  # the last ones are of the report and results.json
        folder = tmp_path / str(point)
        assert run_in(folder, command(features), crash_at(point)) == CRASHED
        # The last operation brings the new name of results.json to the disk.
        assert is_complete(folder) == (point == total)
        assert run_in(folder, command(features)) == (2 if point == total else 0), (folder / "log").read_text()
        assert outputs(folder) == outputs(tmp_path / "calm"), point
