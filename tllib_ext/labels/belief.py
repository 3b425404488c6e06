"""The label model of a run: from its context to beliefs about the given labels."""

from tllib_ext.errors import UserError
from tllib_ext.labels.transition import LabelModel, estimate_labels
from tllib_ext.training.context import Context

__all__ = ["estimate_source_labels"]


def estimate_source_labels(context: Context, num_classes: int, current: bool = False) -> LabelModel:
    """Ask what the given labels must have been.

    Args:
        context (Context): given labels and features of the source; nothing of the target, no clean label
        num_classes (int): K
        current (bool): use the features of G as it is now; False uses what G gets, where that is frozen features
            (a freshly initialised bottleneck only blurs them), else G, whose weights are pretrained before the first step
    """
    if context.source_labels is None:
        raise UserError("estimating the labels needs the given ones and features: train with a run's context")
    frozen = context.source_inputs is not None and not current
    features = context.source_inputs.cpu() if frozen else context.source_features()
    return estimate_labels(features.numpy(), context.source_labels, num_classes, seed=context.seed)
