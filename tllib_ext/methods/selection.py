"""The share of a batch that small-loss selection drops, for the methods that select."""

from typing import Optional, Sequence, Union

from tllib_ext.errors import UserError
from tllib_ext.labels.cached import estimate_once
from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.context import Context

__all__ = ["DropRate", "check_drop_rate", "estimate_source_labels", "resolve_drop_rate"]

#: None follows the run's rate, ``"auto"`` estimates it.
DropRate = Optional[Union[float, str]]


def check_drop_rate(value: DropRate) -> None:
    """Raise unless ``drop_rate`` is None, ``"auto"`` or a share."""
    if value not in (None, "auto") and not (isinstance(value, (int, float)) and 0 <= value < 1):
        raise UserError(f"drop_rate={value}: expected a number in [0, 1), or auto to estimate it")


def resolve_drop_rate(value: DropRate, context: Context, classes: Sequence[str]) -> float:
    """The share to drop: the given one, the experimenter's noise rate, or an estimate from the given labels.

    Examples::

        >>> classes = ["ant", "bee", "cat"]
        >>> resolve_drop_rate(None, Context(steps=10, rate=0.2), classes), resolve_drop_rate(0.3, Context(steps=10), classes)
        (0.2, 0.3)
    """
    if value is None:
        return context.rate
    if value != "auto":
        return float(value)
    model = estimate_source_labels(context, len(classes))
    context.say(model.summary(classes))
    return model.rate


def estimate_source_labels(context: Context, num_classes: int) -> LabelModel:
    """Estimate the true source labels from the given ones and features: G's inputs where these are frozen features (a new
    bottleneck only blurs them), else G's output.

    Args:
        context (Context): given labels and features of the source; nothing of the target, no clean label
        num_classes (int): K
    """
    if context.source_labels is None:
        raise UserError("estimating the labels needs the given ones: pass source_labels")
    features = context.whole("source") if context.source_inputs is None else context.source_inputs.cpu()
    return estimate_once(features.numpy(), context.source_labels, num_classes, context.seed)
