"""``tllib-ext report``: the same as ``python -m tllib_ext.report``."""

from typing import List, Optional

from tllib_ext.report import __main__ as report

__all__ = ["main"]


def main(argv: Optional[List[str]] = None) -> int:
    """Draw the plots and the page of finished runs."""
    return report.main(argv, prog="tllib-ext report")
