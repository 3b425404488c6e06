"""What tensorboard shows of every evaluation besides numbers: the precision-recall curve and the density of the score."""

from typing import Any, Optional

import numpy as np

__all__ = ["add_evaluation"]


def add_evaluation(writer: Any, score: np.ndarray, unknown: Optional[np.ndarray], threshold: Optional[float], step: int) -> None:
    """Add the pictures of one evaluation.

    Args:
        writer (tensorboardX.SummaryWriter): where to
        score (numpy.ndarray): :math:`(N, )`, high = unknown
        unknown (numpy.ndarray, optional): :math:`(N, )` bool; None for an unlabelled target, which has no such curve
        threshold (float, optional): where the method cuts
        step (int): of training
    """
    from tllib_ext.report.plots import density

    if unknown is not None and unknown.any() and not unknown.all():
        # tensorboard cuts at fixed points of [0, 1]: ranks use them evenly, whatever the scale of the score.
        rank = np.unique(score, return_inverse=True)[1]
        writer.add_pr_curve("unknown", unknown.astype(int), rank / max(1, rank.max()), step)
    figure = density(score, unknown, threshold)
    figure.set_dpi(90)
    figure.canvas.draw()
    writer.add_image("density", np.asarray(figure.canvas.buffer_rgba())[..., :3], step, dataformats="HWC")
