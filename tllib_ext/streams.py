"""Names that are written to and cannot be replaced by a file: standard output, devices, pipes, sockets."""

import os
import socket
import stat
import sys
from pathlib import Path
from typing import BinaryIO, Optional

__all__ = ["is_stream", "open_stream"]


def _handle(path: Path) -> Optional[int]:
    """The number of an open file by which ``/dev/stdout`` and its like are meant."""
    named = {"/dev/stdout": 1, "/dev/stderr": 2}
    if str(path) in named:
        return named[str(path)]
    return int(path.name) if str(path.parent) in ("/dev/fd", "/proc/self/fd") and path.name.isdecimal() else None


def is_stream(path: Path) -> bool:
    """Whether a file of this name is written to and cannot be replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return _handle(path) is not None
    return _handle(path) is not None or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def open_stream(path: Path) -> BinaryIO:
    """The stream to write to, for a path of which :func:`is_stream` is true."""
    handle = _handle(path)
    if handle is not None:  # opening it anew would begin a redirected file again
        sys.stdout.flush()
        return os.fdopen(os.dup(handle), "wb")
    if stat.S_ISSOCK(path.stat().st_mode):
        connection = socket.socket(socket.AF_UNIX)
        with connection:
            connection.connect(str(path))
            return os.fdopen(os.dup(connection.fileno()), "wb")
    return open(path, "wb")
