"""What README and docs tell people to type: Python blocks run, commands name flags and files that exist."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT, load_example, shortened

PAGES = sorted([ROOT / "README.md", ROOT / "docs" / "noise.md", ROOT / "docs" / "start.md", ROOT / "docs" / "own_data.md"])


def blocks(language):
    for page in PAGES:
        for number, text in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)):
            yield pytest.param(text, id=f"{page.name}-{number}")


@pytest.mark.parametrize("code", [p for p in blocks("python") if "import numpy as np  # and" not in p.values[0]])
def test_python_blocks_run(code, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if "runs/" in code or "features, labels" in code:
        pytest.skip("needs a finished run")
    exec(compile(shortened(code), "block", "exec"), {})


@pytest.mark.slow
def test_python_blocks_have_the_types_that_a_checker_expects(tmp_path):
    """From outside of the repository, as an editor sees them."""
    pytest.importorskip("mypy")
    files = []
    for number, text in enumerate(re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)):
        files.append(tmp_path / f"block{number}.py")
        files[-1].write_text(text)
    words = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent"]
    done = subprocess.run([*words, *map(str, files)], cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", blocks("bash"))
def test_commands_are_understood(text, monkeypatch):
    from tllib_ext.cli.train import make_parser

    for line in text.replace("\\\n", " ").split("\n"):
        words = shlex.split(line.split(" && ")[-1], comments=True)
        if words[:1] != ["python"] or not words[1].startswith("examples/"):
            continue
        assert (ROOT / words[1]).exists(), line
        if words[1] == "examples/noisy_unida.py":
            make_parser().parse_args(words[2:])
        elif words[1] == "examples/compare.py":
            monkeypatch.setattr("sys.argv", [*words[1:], "--help"])
            with pytest.raises(SystemExit) as stop:
                load_example("compare").main()
            assert stop.value.code == 0
