"""The files of a run folder that grow or are written once."""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Dict, List, Optional

import numpy as np

from tllib_ext import __version__
from tllib_ext.io import read_json_lines, write_json, write_text
from tllib_ext.training.tensorboard import EventFile, add_evaluation
from tllib_ext.typing import Record

__all__ = ["Recorder", "environment"]

_PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "scipy", "Pillow", "timm", "tllib", "safetensors")


#: what a run makes besides ``results.json`` and its checkpoints.
_OUTPUTS = ("results.jsonl", "model.safetensors", "predictions.csv", "suspects.csv", "label_model.json", "target_model.json",
            "transition.csv", "tsne.csv", "report.html", "answer_space.safetensors", "answers.csv", "measure.csv",
            "questions.html", "questions.csv")  # fmt: skip


def environment() -> Dict[str, object]:
    """Versions, machine, commit and working directory, for ``env.json``."""
    import torch

    versions: Dict[str, Optional[str]] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "tllib_ext": __version__, "python": sys.version.split()[0], "platform": platform.platform(),
        "device": device, "threads": torch.get_num_threads(), "commit": _commit(), "directory": os.getcwd(), "versions": versions,
    }  # fmt: skip


def _commit() -> Optional[str]:
    """The commit of the code, with ``-dirty`` appended if files differ from it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        words = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
        out = subprocess.run(words, capture_output=True, text=True, timeout=5)
        return out.stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


class Recorder:
    """Writes ``config.json``, ``env.json``, ``results.jsonl``, ``results.json`` and tensorboard's ``tb/``.

    Args:
        folder (Path): the run folder
        active (bool): False makes every call do nothing (processes other than the first)
    """

    def __init__(self, folder: Path, active: bool = True):
        self.folder, self.active = Path(folder), active
        self._tb: Optional[EventFile] = None
        self._begin = 0
        if active:
            self.folder.mkdir(parents=True, exist_ok=True)

    def start(self, config: Record) -> None:
        """Write what the run is before it starts."""
        if self.active:
            write_json(self.folder / "config.json", config)
            write_json(self.folder / "env.json", environment())

    def clear(self) -> None:
        """Remove what another run left in the folder."""
        # results.json first: whatever is left of the old run if we die here, it does not look finished.
        for name in ("results.json", "checkpoints/last.pt", *_OUTPUTS):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "answers", ignore_errors=True)
        for events in self.folder.glob("tb/events.*"):  # or tensorboard would draw two runs as one
            events.unlink(missing_ok=True)

    def lines(self) -> List[Record]:
        """The evaluations recorded so far; a torn last line is left out."""
        return read_json_lines(self.folder / "results.jsonl")

    def keep_before(self, step: int) -> None:
        """Forget the evaluations at ``step`` and after, which a resumed run will make again."""
        if self.active:
            kept = [line for line in self.lines() if line["step"] < step]
            write_text(self.folder / "results.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
            self._begin = step

    def evaluation(self, record: Record, score: Optional[np.ndarray] = None, unknown: Optional[np.ndarray] = None) -> None:
        """Append one evaluation to ``results.jsonl`` and its numbers to ``tb/``; with ``score``, curve and histograms too."""
        if not self.active:
            return
        path, step = self.folder / "results.jsonl", record["step"]
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        self._tb = self._tb or EventFile(self.folder / "tb", self._begin)
        for name, value in record.items():
            if isinstance(value, float):
                self._tb.add_scalar(name, value, step)
        if score is not None:
            add_evaluation(self._tb, score, unknown, step)
        self._tb.flush()

    def close(self) -> None:
        """Close the file of ``tb/``."""
        if self._tb is not None:
            self._tb.close()

    def finish(self, results: Record) -> None:
        """Write ``results.json``: its presence marks the run as complete."""
        if self.active:
            write_json(self.folder / "results.json", results)
