"""The exceptions of this package with their exit codes, and :func:`run_main`, which prints them as one line."""

import difflib
import errno
import math
import os
import sys
from typing import Callable, Iterable, Optional

__all__ = ["UserError", "LockHeld", "NonFiniteLoss", "StopRequested", "closest", "one_line", "printable", "run_main"]

#: exit codes: lack of disk space or memory or a lost process, bad input, a loss that is not finite
EXIT_ENVIRONMENT, EXIT_INPUT, EXIT_NONFINITE = 1, 2, 3


class UserError(ValueError):
    """Bad input. The message states what was found, what was expected and what to do. Exit code 2."""

    exit_code = EXIT_INPUT


class LockHeld(UserError):
    """Another process holds a lock. Exit code 2."""


class NonFiniteLoss(RuntimeError):
    """A loss term is NaN or infinite. Exit code 3.

    Args:
        term (str): name of the term
        step (int): the training step
        value (float): the value of the term
        more (str): appended to the message
    """

    exit_code = EXIT_NONFINITE

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
    """``text`` with control characters escaped, since a file or class name may contain terminal commands.

    Examples::

        >>> print(printable("a cat\\x1b[2J"))
        a cat\\x1b[2J
    """
    # str.isprintable rejects a no-break space too, which is harmless as an escape
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def one_line(text: object) -> str:
    """``text`` in one printable line."""
    return printable(" ".join(str(text).split()))


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

    Any other exception is a defect of the program and keeps its traceback.

    Args:
        main (callable): returns an exit code, None for 0
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file name may be invalid UTF-8
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except MemoryError:
        return _report(EXIT_ENVIRONMENT, _OUT_OF_MEMORY)
    except OSError as error:
        return _os_error(error)
    except RuntimeError as error:
        text = _runtime_error(error)
        if text is None:
            raise
        return _report(EXIT_ENVIRONMENT, text)


_OUT_OF_MEMORY = "out of memory: try a smaller -b, --cache off or fewer -j"


def _os_error(error: OSError) -> int:
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        where = f" while writing {error.filename}" if error.filename else ""
        resume = "free some space, then the same command continues from its checkpoint"
        return _report(EXIT_ENVIRONMENT, f"no disk space left{where}: {error.strerror}; {resume}")
    if error.filename is None:
        raise error
    return _report(EXIT_INPUT, f"cannot use {os.fsdecode(error.filename)}: {error.strerror}")


def _runtime_error(error: RuntimeError) -> Optional[str]:
    """A message for a RuntimeError of PyTorch, None if it is a defect. This module does not import PyTorch itself."""
    torch, text = sys.modules.get("torch"), str(error)
    if torch is None:
        return None
    if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in text or "can't allocate memory" in text:
        return _OUT_OF_MEMORY
    if "DataLoader worker" in text:
        return f"a process that decodes images was killed, often by lack of memory: try a smaller -j; {text}"
    dist = torch.distributed
    lost = isinstance(error, dist.DistError) if dist.is_available() else False
    # gloo raises plain RuntimeErrors when a peer has ended
    words = ("gloo", "nccl", "connection", "peer", "timed out")
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if lost or (together and any(word in text.lower() for word in words)):
        return f"another process of this run ended or cannot be reached: {text.splitlines()[0]}"
    return None


def _report(code: int, text: object, prefix: str = "error: ") -> int:
    if str(text):
        print(prefix + one_line(text), file=sys.stderr)
    return code
