"""The one exception that stands for "what you gave me does not fit"."""

import difflib
from typing import Iterable

__all__ = ["UserError", "closest"]


class UserError(ValueError):
    """Bad input: the message says what was found, what was expected and what to type.

    Libraries raise it, scripts print it as one line and exit with code 2.
    """


def closest(word: str, choices: Iterable[str], n: int = 3) -> str:
    """The end of an error message: the nearest of ``choices``, then all of them if they are few.

    Examples::

        >>> closest("divergance", ["divergence", "dann"])
        "did you mean 'divergence'? known: dann, divergence"
    """
    names = sorted(set(map(str, choices)))
    lower = {name.lower(): name for name in names}
    near = [lower[hit] for hit in difflib.get_close_matches(str(word).lower(), lower, n)]
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    shown = ", ".join(names[:40]) + (", …" if len(names) > 40 else "")
    return f"{hint}known: {shown}"
