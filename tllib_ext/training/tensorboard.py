"""What tensorboard shows of every evaluation besides metrics: the precision-recall curve and histograms of the score."""

from typing import TYPE_CHECKING, Optional

import numpy as np

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

__all__ = ["add_evaluation"]


def add_evaluation(writer: "SummaryWriter", score: np.ndarray, unknown: Optional[np.ndarray], step: int) -> None:
    """Add the curve and the histograms of one evaluation.

    Args:
        writer (tensorboardX.SummaryWriter): where to
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
