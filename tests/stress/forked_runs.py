"""Short training runs in forked child processes, for tests that kill them or make their writes fail."""

import io
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Callable, Dict, List, Optional

from tllib_ext.cli import train
from tllib_ext.cli.parser import run_main
from tllib_ext.errors import UserError

__all__ = ["COMPARED_FILES", "write_features", "write_images", "features_flags", "images_flags", "preload", "fork_run",
           "exit_code", "temporary_files", "kill_after", "read_outputs"]  # fmt: skip

#: files that a resumed run must reproduce byte for byte
COMPARED_FILES = ("model.safetensors", "results.json", "results.jsonl", "predictions.csv", "suspects.csv")


def write_features(root: Path, size: int = 12) -> Path:
    """Write two domains of Gaussian blobs in 8 dimensions, six classes."""
    import numpy as np

    root.mkdir(parents=True)
    rng, names = np.random.default_rng(0), np.array(["ant", "bee", "cat", "dog", "eel", "fox"])
    centres, labels = 2 * rng.normal(size=(6, 8)), np.repeat(np.arange(6), size)
    for shift, domain in enumerate(["alpha", "beta"]):
        features = centres[labels] + 0.4 * rng.normal(size=(6 * size, 8)) + 0.3 * shift
        np.savez(root / f"{domain}.npz", features=features.astype(np.float32), labels=labels, classes=names)
    return root


def write_images(root: Path) -> None:
    """Write two domains of coloured squares, three classes each, two of them shared."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for domain, names in (("alpha", ("red", "green", "blue")), ("beta", ("red", "green", "grey"))):
        for number, name in enumerate(names):
            (root / domain / name).mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(0, 90, (12, 12, 3)) + 50 * number
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / name / f"{i}.png")


def features_flags(root: Path) -> List[str]:
    """Flags of a run of a few seconds on :func:`write_features`."""
    return [str(root), "-d", "features", "-s", "alpha", "-t", "beta", "--split", "3/2/1", "--noise", "pair", "-b", "8",
            "--bottleneck-dim", "16", "--no-report", "--device", "cpu"]  # fmt: skip


def images_flags(root: Path) -> List[str]:
    """Flags of a run of a few seconds on :func:`write_images`."""
    return [str(root), "-d", "folder", "-s", "alpha", "-t", "beta", "--noise", "pair", "-b", "4", "-a", "small_cnn",
            "--no-report", "--device", "cpu"]  # fmt: skip


def preload(root: Path, report: bool = False) -> None:
    """Import all modules of a run by one short run on ``root``, with its report or not, so that forked children need not."""
    import torch

    torch.set_num_threads(1)  # OpenMP threads do not survive a fork
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        words = [word for word in features_flags(root) if not report or word != "--no-report"]
        train.main([*words, "--steps", "1", "--log", folder])


def fork_run(words: List[str], log: Path, before: Optional[Callable[[], None]] = None,
             main: Callable[[List[str]], Optional[int]] = train.main) -> int:  # fmt: skip
    """Start one run in a forked child process; returns its process id.

    Args:
        words (list): flags of one run
        log (Path): file that its output is appended to
        before (callable, optional): called in the child before the run, e.g. to set a resource limit
        main (callable): the command
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        sys.stdout = sys.stderr = open(log, "a", buffering=1, errors="backslashreplace")
        os.dup2(sys.stdout.fileno(), 1)
        os.dup2(sys.stdout.fileno(), 2)
        if before is not None:
            before()
        code = run_main(lambda: main(words))
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(child: int, seconds: float = 120) -> int:
    """Wait for a child to end; it is killed after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the child did not end within {seconds} seconds")


def temporary_files(folder: Path) -> List[Path]:
    """Temporary files of atomic writes in a run folder, unfinished or left by a killed process."""
    return list(folder.rglob(".*.part"))


def kill_after(child: int, folder: Path, delay: float, in_checkpoint: bool) -> bool:
    """Send SIGKILL to a child after ``delay`` seconds; with ``in_checkpoint``, during its next checkpoint after that.

    Returns:
        False if the child had ended before
    """
    begin = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise UserError(f"a run in {folder} ended with {os.waitstatus_to_exitcode(status)}; see {folder}.log")
            return False
        if time.monotonic() - begin >= delay and (not in_checkpoint or any("last.pt" in f.name for f in temporary_files(folder))):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.0005 if in_checkpoint else 0.005)


def read_outputs(folder: Path) -> Dict[str, bytes]:
    """Contents of the files by which two runs are compared."""
    return {name: (folder / name).read_bytes() for name in COMPARED_FILES}
