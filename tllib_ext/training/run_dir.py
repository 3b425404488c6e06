"""A run folder in use: the lock, the signals, and whether an unfinished run can continue."""

import json
import os
import signal
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Dict, List, Mapping, Optional

from tllib_ext.errors import LockHeld, UserError
from tllib_ext.io import file_lock
from tllib_ext.training.config import RunConfig
from tllib_ext.training.earlier import upgrade
from tllib_ext.typing import Record

__all__ = ["Lock", "Stopper", "check_folder", "differences", "read_config", "run_folder"]

#: keys of ``config.json`` about the origin of a run, not about what it computes.
_ORIGIN = {"command", "phase", "config", "list_hp", "quiet"}
#: what a grid and a run that was killed at its start leave in a folder before there is a ``config.json``.
_BEFORE = {".lock", "cell.json", "log.txt", "error.json"}


def run_folder(config: RunConfig) -> Path:
    """The folder of a run: :attr:`RunConfig.log`, or a name made of its settings; a finished run needs ``overwrite``."""
    if config.log is not None:
        folder = Path(config.log)
        if (folder / "results.json").exists() and not config.overwrite:
            raise UserError(f"{folder} holds a finished run: add overwrite=True, or choose another log folder")
        return folder
    noise = "clean" if config.noise == "none" else f"{Path(str(config.noise)).stem}_{config.rate:g}"
    if config.labels is not None:
        noise = "_".join([Path(config.labels).stem, *(config.labels_column or "").split(",")]).rstrip("_")
    task = f"{config.source}2{config.target}".replace(os.sep, "-")
    method = config.method.replace(":", "-") + ("" if config.labels_by == "given" else f"_{config.labels_by}")
    parts = [config.data.replace(":", "-"), task, noise, method, f"seed{config.seed}"]
    folder, number = Path("runs") / "_".join(parts), 1
    while (folder / "results.json").exists():
        number += 1
        folder = Path("runs") / "_".join([*parts, str(number)])
    return folder


class Lock:
    """Holds ``FOLDER/.lock`` until :meth:`release` or the end of the process; a folder in use is an error."""

    def __init__(self, folder: Path):
        _check_regular(folder / ".lock")
        self._stack = ExitStack()
        try:
            self._stack.enter_context(file_lock(folder / ".lock", blocking=False))
        except LockHeld:
            raise LockHeld(f"{folder} is in use by another run: wait for it, or choose another folder") from None

    def release(self) -> None:
        """Let others in."""
        self._stack.close()


def _check_regular(file: Path) -> None:
    """Refuse anything but a regular file: opening a pipe would wait for ever."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise UserError(f"{file} is not a regular file: remove it, or choose another folder")


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds files and is not a run's: a run replaces and removes files by their names."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return
    foreign = sorted(name for name in os.listdir(folder) if name not in _BEFORE and not name.endswith(".part"))
    if foreign:
        raise UserError(f"log={str(folder)!r} is not a run folder and not empty (it holds {foreign[0]}): choose another folder")


class Stopper:
    """Records SIGINT, SIGTERM and SIGHUP so that the loop can finish its step; a second signal ends the process at once.

    Under ``torchrun`` a signal to the process group arrives twice, once from the sender and once passed on by
    ``torchrun``: there the second one counts only after :attr:`GRACE` seconds.

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
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup: the run is meant to outlive its terminal
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread (a notebook's worker)
                break
        return self

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        if self.signal is None:
            self.signal = number
            self._deaf_until = time.monotonic() + (self.GRACE if "TORCHELASTIC_RUN_ID" in os.environ else 0.0)
            if os.environ.get("RANK", "0") == "0":
                with suppress(OSError):  # not print: the signal may have interrupted one
                    os.write(2, b"\nstopping after this step; again to stop now\n")
        elif time.monotonic() >= self._deaf_until:
            os._exit(128 + number)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def read_config(folder: Path) -> Optional[Record]:
    """``config.json`` of a run folder, None if there is none."""
    _check_regular(folder / "config.json")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {folder / 'config.json'}: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} is not a run's configuration")
    return config


def _spread(record: Mapping[str, object], name: str) -> Record:
    """The record with an entry for each part of ``name``, e.g. ``objects source length``."""
    rest = {key: value for key, value in record.items() if key != name}
    inner = record.get(name)
    for key, value in inner.items() if isinstance(inner, Mapping) else ():
        path = f"{name} {key}"
        rest.update(_spread({path: value}, path) if isinstance(value, Mapping) else {path: value})
    return rest


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> List[str]:
    """Settings that make two ``config.json`` different runs, as text.

    Examples::

        >>> differences({"lr": 0.1, "workers": 2}, {"lr": 0.2, "workers": 4})
        ['lr 0.1 -> 0.2']
    """
    defaults, new = RunConfig().to_dict(), json.loads(json.dumps(new))
    old = {**{name: value for name, value in defaults.items() if name in new}, **upgrade(old)}
    old, new = _spread(old, "objects"), _spread(new, "objects")
    keys = sorted((set(old) | set(new)) - (set(defaults) - set(RunConfig.essential())) - _ORIGIN)
    return [f"{key} {old.get(key)} -> {new.get(key)}" for key in keys if old.get(key) != new.get(key)]
