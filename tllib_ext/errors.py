"""The exceptions of this package with their exit codes, and :func:`run_main`, which prints them as one line."""

import difflib
import errno
import math
import os
import sys
from contextlib import suppress
from typing import Callable, Iterable, Optional, Tuple

__all__ = ["UserError", "LockHeld", "NonFiniteLoss", "StopRequested", "closest", "first_line", "one_line", "printable",
           "run_main", "say", "visible"]  # fmt: skip


class UserError(ValueError):
    """Bad input. The message states what was found, what was expected and what to do. Exit code 2."""

    exit_code = 2


class LockHeld(UserError):
    """Another process holds a lock. Exit code 2."""


class NonFiniteLoss(RuntimeError):
    """The loss term ``term`` is NaN or infinite at a step; ``more`` is appended to the message. Exit code 3."""

    exit_code = 3

    def __init__(self, term: str, step: int, value: float = math.nan, more: str = "") -> None:
        super().__init__(f"loss term {term!r} is {value} at step {step}{more}")
        self.term, self.step, self.value = term, step, value


class StopRequested(Exception):
    """A signal stopped the run after its state was saved. Exit code 128 + the signal's number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


def closest(word: str, choices: Iterable[str], n: int = 3) -> str:
    """The end of an error message: the names most similar to ``word``, then the first 40 of ``choices``.

    Examples::

        >>> closest("divergance", ["divergence", "dann"])
        "did you mean 'divergence'? known: dann, divergence"
    """
    names = sorted(set(map(str, choices)))
    lower = {name.lower(): name for name in names}
    near = [lower[hit] for hit in difflib.get_close_matches(str(word).lower(), lower, n)]
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    shown = ", ".join(names[:40]) + (", …" if len(names) > 40 else "")
    return f"{hint}known: {shown}"


def printable(text: object) -> str:
    """``text`` with control characters escaped, since a file or class name may contain terminal commands."""
    # str.isprintable rejects a no-break space too, which is harmless as an escape
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def one_line(text: object) -> str:
    """``text`` in one printable line."""
    return printable(" ".join(str(text).split()))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; the error's type where there is no message.

    Examples::

        >>> first_line(EOFError()), first_line(ValueError("one\\ntwo"))
        ('EOFError', 'one')
    """
    return next(iter(str(error).splitlines()), "")[:200] or type(error).__name__


def visible(name: object) -> str:
    """A class or file name with every control character escaped, line breaks too."""
    return printable(name).replace("\n", "\\n")


def run_main(main: Callable[[], Optional[int]]) -> int:
    """Run a script's main function; an error that a user can correct becomes one line on stderr and an exit code.

    ====== ==================================================
    code   meaning
    ====== ==================================================
    1      no disk space, no memory, or a lost process
    2      bad input
    3      a loss that is not finite
    128+N  stopped by signal N
    ====== ==================================================

    Any other exception is a defect of the program and keeps its traceback. ``main`` returns an exit code, None for 0.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (2>&-): the next file that is opened would get its number
            setattr(sys, name, open(os.devnull, "w"))
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")  # a file name may be invalid UTF-8
    try:
        return main() or 0
    except (UserError, NonFiniteLoss) as error:
        return _report(error.exit_code, error)
    except StopRequested as error:
        # Under torchrun every process stops; only the first prints the message.
        return _report(error.exit_code, error if os.environ.get("RANK", "0") == "0" else "", prefix="")
    except KeyboardInterrupt:
        return _report(130, "interrupted")
    except BrokenPipeError:  # the reader has closed the pipe (| head)
        _drop_output()
        return 128 + 13
    except (MemoryError, OSError, RuntimeError) as error:
        code, text = _environment_error(error)
        if not code:
            raise
        return _report(code, text)


def _environment_error(error: Exception) -> Tuple[int, str]:
    """Exit code and message of an error of the system or of PyTorch, code 0 for a defect. Does not import PyTorch."""
    torch, text = sys.modules.get("torch"), str(error)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            where = f" while writing {error.filename}" if error.filename else ""
            resume = "free some space, then the same command continues from its checkpoint"
            return 1, f"no disk space left{where}: {error.strerror}; {resume}"
        return (0, "") if error.filename is None else (2, f"cannot use {os.fsdecode(error.filename)}: {error.strerror}")
    full = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    if isinstance(error, full) or "not enough memory" in text or "can't allocate memory" in text:
        return 1, "out of memory: try a smaller -b, --cache off or fewer -j"
    lost = torch is not None and torch.distributed.is_available() and isinstance(error, torch.distributed.DistError)
    # gloo raises plain RuntimeErrors when a peer has ended
    words = ("gloo", "nccl", "connection", "peer", "timed out")
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if lost or (together and any(word in text.lower() for word in words)):
        return 1, f"another process of this run ended or cannot be reached: {first_line(error)}"
    return 0, ""


def _report(code: int, text: object, prefix: str = "error: ") -> int:
    if str(text):
        with suppress(BrokenPipeError):
            print(prefix + one_line(text), file=sys.stderr, flush=True)
    return code


def say(text: str, write: Callable[[str], object] = print) -> None:
    """Print a line of a log. A reader that has closed its pipe (``| head``) ends the log and not the work."""
    try:
        write(printable(text))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
