"""Small runs to be hurt: tiny data, children that train, and what their folders hold."""

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

__all__ = ["SAME", "write_features", "write_images", "features_flags", "images_flags", "warm_up", "launch", "drafts",
           "wait_and_kill", "contents"]  # fmt: skip

#: what a resumed run must repeat byte for byte.
SAME = ("model.safetensors", "results.json", "results.jsonl", "predictions.csv", "suspects.csv")


def write_features(root: Path, size: int = 12) -> Path:
    """Two domains of blobs in 8 dimensions, six classes."""
    import numpy as np

    root.mkdir(parents=True)
    rng, names = np.random.default_rng(0), np.array(["ant", "bee", "cat", "dog", "eel", "fox"])
    centres, labels = 2 * rng.normal(size=(6, 8)), np.repeat(np.arange(6), size)
    for shift, domain in enumerate(["alpha", "beta"]):
        features = centres[labels] + 0.4 * rng.normal(size=(6 * size, 8)) + 0.3 * shift
        np.savez(root / f"{domain}.npz", features=features.astype(np.float32), labels=labels, classes=names)
    return root


def write_images(root: Path) -> None:
    """Two domains of coloured squares, three classes each, two of them shared."""
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
    """A run of a few seconds."""
    return [str(root), "-d", "features", "-s", "alpha", "-t", "beta", "--split", "3/2/1", "--noise", "pair", "-b", "8",
            "--bottleneck-dim", "16", "--no-report", "--device", "cpu"]  # fmt: skip


def images_flags(root: Path) -> List[str]:
    """The same on images, with a process that decodes them."""
    return [str(root), "-d", "folder", "-s", "alpha", "-t", "beta", "--noise", "pair", "-b", "4", "-a", "small_cnn",
            "--no-report", "--device", "cpu"]  # fmt: skip


def warm_up(root: Path) -> None:
    """Import everything that a run needs, by one small run on :func:`write_features`: children are born with it."""
    import torch

    torch.set_num_threads(1)  # a forked child cannot use its parent's threads
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        train.main([*features_flags(root), "--steps", "1", "--log", folder])


def launch(words: List[str], log: Path, before: Optional[Callable[[], None]] = None) -> int:
    """A child that trains; forked, so that it need not import everything again. Returns its process id.

    Args:
        words (list): flags of one run
        log (Path): its output is appended there
        before (callable, optional): called in the child first, to limit or to change it
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
        code = run_main(lambda: train.main(words))
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def drafts(folder: Path) -> List[Path]:
    """Files of a run folder that are being written, or were when their writer died."""
    return list(folder.rglob(".*.part"))


def wait_and_kill(child: int, folder: Path, delay: float, in_checkpoint: bool) -> bool:
    """Kill the child after ``delay`` seconds, or then when it next writes a checkpoint; False if it had ended before."""
    begin = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise UserError(f"a run in {folder} ended with {os.waitstatus_to_exitcode(status)}; see {folder}.log")
            return False
        if time.monotonic() - begin >= delay and (not in_checkpoint or any("last.pt" in f.name for f in drafts(folder))):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.0005 if in_checkpoint else 0.005)


def contents(folder: Path) -> Dict[str, bytes]:
    """What two runs are compared by."""
    return {name: (folder / name).read_bytes() for name in SAME}
