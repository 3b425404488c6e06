"""A run folder while somebody works in it: the lock, the signals, and whether to go on where it stopped."""

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, List, Optional

from tllib_ext.errors import LockHeld, UserError
from tllib_ext.io import file_lock

__all__ = ["Lock", "Stopper", "differences", "read_config"]

#: flags that do not change what a run computes.
FREE = {"command", "log", "overwrite", "resume", "workers", "cache", "device", "phase", "config", "download", "list_hp",
        "checkpoint_every", "checkpoint_minutes", "keep", "no_report", "quiet", "check", "root", "on_nonfinite"}  # fmt: skip


class Lock:
    """Holds ``FOLDER/.lock`` until :meth:`release` or the end of the process; a folder in use is an error."""

    def __init__(self, folder: Path):
        self._stack = ExitStack()
        try:
            self._stack.enter_context(file_lock(folder / ".lock", blocking=False))
        except LockHeld:
            raise LockHeld(f"{folder} is in use by another run: wait for it, or choose another --log") from None

    def release(self) -> None:
        """Let others in."""
        self._stack.close()


class Stopper:
    """Notices SIGINT and SIGTERM so that the loop can finish its step; a second signal stops at once.

    Under ``torchrun`` a signal to everybody arrives twice, once from the sender and once passed on by ``torchrun``: there
    the second one counts only after :attr:`GRACE` seconds.

    Examples::

        >>> with Stopper() as stop:
        ...     os.kill(os.getpid(), signal.SIGTERM)
        ...     stop.signal == signal.SIGTERM
        True
    """

    #: seconds within which ``torchrun`` repeats a signal
    GRACE = 5.0

    def __init__(self) -> None:
        self.signal: Optional[int] = None
        self._deaf_until = 0.0
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "Stopper":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread (a notebook's worker): signals are somebody else's
                break
        return self

    def _note(self, number: int, frame: Any) -> None:
        if self.signal is None:
            self.signal = number
            self._deaf_until = time.monotonic() + (self.GRACE if "TORCHELASTIC_RUN_ID" in os.environ else 0.0)
        elif time.monotonic() >= self._deaf_until:
            os._exit(128 + number)

    def __exit__(self, *exc: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def read_config(folder: Path) -> Optional[Dict[str, Any]]:
    """``config.json`` of a run folder, None if there is none."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {folder / 'config.json'}: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} is not a run's configuration")
    return config


def differences(old: Dict[str, Any], new: Dict[str, Any]) -> List[str]:
    """Settings that make two configurations different runs, as text.

    Examples::

        >>> differences({"lr": 0.1, "workers": 2}, {"lr": 0.2, "workers": 4})
        ['lr 0.1 -> 0.2']
    """
    new = json.loads(json.dumps(new))
    keys = sorted((set(old) | set(new)) - FREE)
    return [f"{key} {old.get(key)} -> {new.get(key)}" for key in keys if old.get(key) != new.get(key)]
