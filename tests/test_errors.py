"""Exit codes and messages: one line for what a user can correct, a traceback for a defect."""

import errno
import inspect
import os
import pickle
import subprocess
import sys

import pytest

from tllib_ext import errors
from tllib_ext.errors import LockHeld, NonFiniteLoss, StopRequested, UserError, closest, one_line, run_main


@pytest.mark.parametrize(
    "error, code, message",
    [
        (UserError("bad"), 2, "error: bad\n"),
        (LockHeld("held"), 2, "error: held\n"),
        (NonFiniteLoss("source", 7, float("inf"), "; lower the rate"), 3,
         "error: loss term 'source' is inf at step 7; lower the rate\n"),
        (StopRequested(15, "saved at step 3"), 143, "saved at step 3\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (MemoryError(), 1, "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "run/last.pt"), 1, "no disk space left while writing run/last.pt"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x.npz"), 2, "error: cannot use x.npz: No such file\n"),
        (UserError("two\nlines \x1b[2J"), 2, "error: two lines \\x1b[2J\n"),
    ],
)  # fmt: skip
def test_exit_codes(error, code, message, capsys):
    def main():
        raise error

    assert run_main(main) == code
    assert message in capsys.readouterr().err


def test_every_exception_has_an_exit_code():
    for _, cls in inspect.getmembers(errors, lambda value: inspect.isclass(value) and issubclass(value, Exception)):
        error = cls(*{"NonFiniteLoss": ("x", 1), "StopRequested": (2, "x")}.get(cls.__name__, ("x",)))
        assert error.exit_code in (2, 3, 130)


@pytest.mark.parametrize("text, words", [("can't allocate memory", "out of memory"), ("not enough memory", "smaller -b")])
def test_runtime_errors_of_pytorch(text, words, capsys):
    import torch  # noqa: F401

    def main():
        raise RuntimeError(text)

    assert run_main(main) == 1 and words in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), OSError("no file"), TypeError("x"), ValueError("y")])
def test_a_defect_keeps_its_traceback(error):
    def main():
        raise error

    with pytest.raises(type(error)):
        run_main(main)


def test_the_code_that_main_returns():
    assert run_main(lambda: None) == 0 and run_main(lambda: 5) == 5


def test_a_closed_pipe_is_silent():
    code = "import sys; from tllib_ext.errors import run_main; sys.exit(run_main(lambda: print('x' * 1_000_000)))"
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    assert (run.returncode, run.stderr) == (141, "")


def test_messages():
    assert closest("zzz", ["b", "a"]) == "known: a, b"
    assert closest("x", map(str, range(50))).endswith(", …")
    assert one_line("a\tb\n\nc\x07") == "a b c\\x07"


def test_errors_that_cross_processes():
    error = pickle.loads(pickle.dumps(UserError("x")))
    assert type(error) is UserError and str(error) == "x"
