"""The plugin inside an ordinary tllib script, with the real tllib and the real Office-31."""

from pathlib import Path

import pytest
from test_compat import REAL, ROOT, python

OFFICE = Path(__file__).resolve().parents[3] / "shared" / "data" / "office31"
SCRIPT = ROOT / "examples" / "plain_tllib_loop.py"


def test_it_knows_only_losses_lists_and_evaluator():
    imports = {line.split()[1] for line in SCRIPT.read_text().splitlines() if line.startswith("from tllib_ext.")}
    assert not [name for name in imports if name.startswith(("tllib_ext.training", "tllib_ext.cli"))]
    assert "tllib_ext.alignment.divergence" in imports and "tllib_ext.evaluation.openset" in imports
    assert len(SCRIPT.read_text().splitlines()) < 170


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
@pytest.mark.skipif(not OFFICE.is_dir(), reason=f"needs Office-31 in {OFFICE}")
def test_it_runs_with_the_real_tllib(tmp_path):
    flags = "-s W -t D -a resnet18 --scratch --epochs 1 -i 3 -b 4 -j 0 -p 1 --noise pair --rate 0.2".split()
    done = python(SCRIPT, OFFICE, *flags, "--log", tmp_path, path=[REAL])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "19.6% of the source labels are wrong" in done.stdout  # the authors' draw
    assert " * OS " in done.stdout and "universal label sets, 332 images" in done.stdout
    assert list(tmp_path.glob("train-*.txt")) and (tmp_path / "checkpoints" / "latest.pth").exists()
