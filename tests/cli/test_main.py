"""tllib-ext: its commands, their help, and the flags of earlier releases."""

import re
import subprocess
import sys
from importlib import import_module

import pytest
from conftest import ROOT

from tllib_ext.cli.main import COMMANDS, main
from tllib_ext.cli.parser import name_flags


def run(capsys, *words):
    try:
        code = main(list(words))
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_the_console_script_is_installed():
    script = re.search(r'"tllib-ext = ([\w.]+):(\w+)"', (ROOT / "setup.py").read_text())
    assert getattr(import_module(script[1]), script[2]) is main


def test_help_names_every_command_and_loads_nothing_heavy():
    code = "import sys; from tllib_ext.cli.main import main; main(['--help'])\n" \
           "assert not {'torch', 'numpy', 'matplotlib', 'sklearn'} & set(sys.modules)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"    {name}" in done.stdout for name in COMMANDS)
    assert done.stdout == subprocess.run([sys.executable, "-m", "tllib_ext"], cwd=ROOT, capture_output=True, text=True).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys, command):
    code, out, err = run(capsys, command, "--help")
    assert not code and out and not err


def test_help_is_short_and_help_all_complete(capsys):
    short, whole = run(capsys, "train", "--help")[1], run(capsys, "train", "--help-all")[1]
    for flag in ("--source", "--noise", "--rate", "--method", "--arch", "--steps", "--log"):
        assert f"{flag} " in short and f"{flag} " in whole
    for flag in ("--noise-mode", "--checkpoint-minutes", "--momentum", "--weight-decay", "--image-size", "--bottleneck-dim"):
        assert f"{flag} " not in short and f"{flag} " in whole
    assert short.count("\n  -") < 20 < 45 < whole.count("\n  -")
    assert "--jobs" in run(capsys, "compare", "--help")[1] and "--tasks" in run(capsys, "reproduce", "table2", "--help")[1]


@pytest.mark.parametrize("words, message", [
    (["tran"], "did you mean 'train'"),
    (["train", "--bottleneck", "16"], "--bottleneck is called --bottleneck-dim now"),
    (["compare", "--bottleneck=16"], "--bottleneck is called --bottleneck-dim now"),
    (["train", "--ratee", "1"], "did you mean '--rate'"),
    (["train", "--rate", "1.5"], "--rate 1.5: expected a number in [0, 1)"),
    (["train", "--opt", "adam"], "unknown flag --opt"),
])  # fmt: skip
def test_wrong_words_are_one_line(capsys, words, message):
    code, _, err = run(capsys, *words)
    assert code == 2 and message in err and err.count("\n") == 1


def test_files_may_not_say_where_to_write_or_what_to_read(capsys, tmp_path):
    for key in ("log: elsewhere", "overwrite: true", "allow_outside: true", "allow-outside: true"):
        (tmp_path / "c.yaml").write_text(f"noise: pair\n{key}\n")
        code, _, err = run(capsys, "train", "-c", str(tmp_path / "c.yaml"))
        assert code == 2 and f"{key.partition(':')[0]} may not be set by a file" in err
    (tmp_path / "c.yaml").write_text("bottleneck: 16\n")
    assert "bottleneck is called bottleneck_dim now" in run(capsys, "train", "-c", str(tmp_path / "c.yaml"))[2]


def test_arguments_become_flags_and_paths_stay():
    assert name_flags("precision='tf32' needs a CUDA device") == "--precision tf32 needs a CUDA device"
    assert name_flags("add overwrite=True, or device='cpu'") == "add --overwrite, or --device cpu"
    assert name_flags("no data folder /data/rate=0.2/x and eta=1") == "no data folder /data/rate=0.2/x and eta=1"
