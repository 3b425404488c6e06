"""The generated tables of the documentation are what the code and the records say."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_up_to_date():
    done = subprocess.run([sys.executable, "docs/fill.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_method_has_a_page_with_both_tables():
    from tllib_ext.methods import METHODS

    for name in METHODS:
        text = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
        for kind in ("hparams", "results"):
            assert re.search(rf"<!-- {kind}:{name} -->\n.*?<!-- end -->", text, re.S), (name, kind)
