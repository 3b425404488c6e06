"""How much of a batch is taken to be wrongly labelled: the checks that the selecting methods share."""

from typing import Optional, Union

from tllib_ext.errors import UserError

__all__ = ["given_drop_rate"]


def given_drop_rate(value: Optional[Union[float, str]]) -> float:
    """The hyper-parameter ``drop_rate`` as a number; 0 where it follows later (``None``: the run's rate, ``auto``).

    Examples::

        >>> given_drop_rate(0.2), given_drop_rate(None)
        (0.2, 0.0)
    """
    if value is None or value == "auto":
        return 0.0
    if isinstance(value, str) or not 0 <= value < 1:
        raise UserError(f"--drop-rate {value!r}: expected a number in [0, 1), or auto")
    return float(value)
