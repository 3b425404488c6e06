"""How much of a batch is taken to be wrongly labelled: what the selecting methods share."""

from typing import Optional, Sequence, Union

from tllib_ext.errors import UserError
from tllib_ext.training.context import Context

__all__ = ["DropRate", "check_drop_rate", "resolve_drop_rate"]

#: None follows the run's rate, ``"auto"`` estimates it.
DropRate = Optional[Union[float, str]]


def check_drop_rate(value: DropRate) -> None:
    """Refuse a hyper-parameter ``drop_rate`` that is none of None, ``"auto"`` and a share."""
    if value not in (None, "auto") and not (isinstance(value, (int, float)) and 0 <= value < 1):
        raise UserError(f"--drop-rate {value}: expected a number in [0, 1), or auto to estimate it")


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
    from tllib_ext.labels.belief import estimate_source_labels

    model = estimate_source_labels(context, len(classes))
    context.say(model.summary(classes))
    return model.rate
