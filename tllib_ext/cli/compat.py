"""``tllib-ext compat``: the same as ``python -m tllib_ext.compat``."""

from typing import List, Optional

from tllib_ext import compat
from tllib_ext.cli.parser import Parser

__all__ = ["main"]


def main(argv: Optional[List[str]] = None) -> int:
    """Print which optional packages are usable."""
    Parser(prog="tllib-ext compat", description="Which optional packages are usable here, and what to type if not.").parse_args(
        argv
    )
    compat.main()
    return 0
