"""The edge of every script: errors become one line and an exit code, and what is printed commands no terminal."""

import errno
import os
import sys
from typing import Any, Callable, Optional, Tuple

from tllib_ext.errors import UserError

__all__ = ["guarded", "one_line", "printable"]


def guarded(main: Callable[[], Optional[int]]) -> int:
    """Run a script's main: what a user can mend is one line on stderr and a code, never a traceback.

    Codes: 2 bad input, 3 a loss that is not finite, 1 no room or a lost process, 128 + N stopped by signal N.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be text, and must not stop a run
    try:
        return main() or 0
    except UserError as error:
        return _say(2, error)
    except KeyboardInterrupt:
        return _say(130, "interrupted")
    except BrokenPipeError:  # the reader of our output has left (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            where = f" while writing {error.filename}" if error.filename else ""
            return _say(1, f"no room left{where}: {error.strerror}; make room, then the same command goes on from its checkpoint")
        if error.filename is None:
            raise
        return _say(2, f"cannot use {os.fsdecode(error.filename)}: {error.strerror}")
    except Exception as error:
        code, text, prefix = _explained(error)
        if code is None:
            raise
        return _say(code, text, prefix)


def _explained(error: Exception) -> Tuple[Optional[int], Any, str]:
    kind, text = type(error).__name__, str(error)  # by name: the classes live in modules that import torch
    if kind == "StopRequested":
        said = error if os.environ.get("RANK", "0") == "0" else ""  # once, not by every process
        return error.code, said, ""  # type: ignore[attr-defined]
    if kind == "NonFiniteLoss":
        return 3, error, "error: "
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError" or "not enough memory" in text:
        return 1, "out of memory: try a smaller -b, --cache off or fewer -j", "error: "
    if kind == "RuntimeError" and "DataLoader worker" in text:
        return 1, f"a process that decodes images was killed, often for want of memory: try a smaller -j; {text}", "error: "
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    lost = kind == "RuntimeError" and any(word in text.lower() for word in ("gloo", "nccl", "connection", "peer", "timed out"))
    if kind in ("DistBackendError", "DistNetworkError") or (together and lost):
        return 1, f"another process of this run ended or cannot be reached: {text.splitlines()[0]}", "error: "
    return None, None, ""


def printable(text: Any) -> str:
    """``text`` without what commands a terminal: names of files and classes may hold anything.

    Examples::

        >>> print(printable("a cat\\x1b[2J"))
        a cat\\x1b[2J
    """
    # str.isprintable takes a no-break space for unprintable, which does no harm as an escape
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def one_line(text: Any) -> str:
    """``text`` in one printable line."""
    return printable(" ".join(str(text).split()))


def _say(code: int, text: Any, prefix: str = "error: ") -> int:
    if str(text):
        print(prefix + one_line(text), file=sys.stderr)
    return code
