"""The generated tables of the documentation are what the code and the records say."""

import re
from pathlib import Path

import fill

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["docs/fill.py", "--check"])
    assert fill.main() == 0, capsys.readouterr().out


def test_every_method_has_a_page_with_both_tables():
    from tllib_ext.methods import METHODS

    for name in METHODS:
        text = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
        for kind in ("hparams", "results"):
            assert re.search(rf"<!-- {kind}:{name} -->\n.*?<!-- end -->", text, re.S), (name, kind)
