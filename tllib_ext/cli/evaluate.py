"""``tllib-ext evaluate``: the same as ``python -m tllib_ext.evaluation``."""

from typing import List, Optional

from tllib_ext.evaluation import __main__ as evaluation

__all__ = ["main"]


def main(argv: Optional[List[str]] = None) -> int:
    """Recompute every metric from a predictions file."""
    return evaluation.main(argv, prog="tllib-ext evaluate")
