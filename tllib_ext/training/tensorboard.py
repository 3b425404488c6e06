"""What tensorboard shows: the scalars of every evaluation, its precision-recall curve and histograms of its score."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

import numpy as np

__all__ = ["EventFile", "add_evaluation"]


class EventFile:
    """An event file for tensorboard, written by the caller's thread.

    ``tensorboardX.SummaryWriter`` writes from a thread of its own, which ends on a full disk: the caller then waits for ever
    for room in its queue. Here the error reaches the caller.

    Args:
        folder (Path): gets the file ``events.…``
        purge_step (int): tensorboard hides what earlier files of the folder hold from this step on; 0 hides nothing
    """

    def __init__(self, folder: Path, purge_step: int = 0):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")  # two files in a second are two files
        if purge_step:
            self._add(purge_step, session_log=SessionLog(status=SessionLog.START))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._call(self._writer.write_event, Event(wall_time=time.time(), step=step, **content))

    def _call(self, write: Any, *args: object) -> None:
        try:
            write(*args)
        except OSError as error:  # write() does not name the file
            raise OSError(error.errno, error.strerror, str(self._folder)) from None

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Add one number."""
        from tensorboardX.summary import scalar

        self._add(step, summary=scalar(tag, value))

    def add_pr_curve(self, tag: str, labels: np.ndarray, predictions: np.ndarray, step: int) -> None:
        """Add the precision-recall curve of ``predictions`` in [0, 1]."""
        from tensorboardX.summary import pr_curve

        self._add(step, summary=pr_curve(tag, labels, predictions))

    def add_histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """Add a histogram."""
        from tensorboardX.summary import histogram

        self._add(step, summary=histogram(tag, values, bins=64))

    def flush(self) -> None:
        """Bring what was added to the disk."""
        self._call(self._writer.flush)

    def close(self) -> None:
        """Close the file; what could not be written was an error of :meth:`flush`."""
        with suppress(OSError):
            self._writer.close()


def add_evaluation(writer: EventFile, score: np.ndarray, unknown: Optional[np.ndarray], step: int) -> None:
    """Add the curve and the histograms of one evaluation.

    Args:
        writer (EventFile): where to
        score (numpy.ndarray): :math:`(N, )`, high = unknown
        unknown (numpy.ndarray, optional): :math:`(N, )` bool; None for an unlabelled target, which has no such curve
        step (int): of training
    """
    if unknown is None or unknown.all() or not unknown.any():
        writer.add_histogram("score", score, step)
        return
    # tensorboard uses fixed thresholds in [0, 1]: ranks use them evenly, whatever the scale of the score.
    rank = np.unique(score, return_inverse=True)[1]
    writer.add_pr_curve("unknown", unknown.astype(int), rank / max(1, rank.max()), step)
    writer.add_histogram("score/known", score[~unknown], step)
    writer.add_histogram("score/unknown", score[unknown], step)
