"""``python -m tllib_ext.report RUN``: draw the plots and the page of a finished run again, from its files."""

import argparse
import sys
from typing import List, Optional

from tllib_ext.errors import run_main

__all__ = ["main"]


def main(argv: Optional[List[str]] = None, prog: str = "python -m tllib_ext.report") -> int:
    """Make ``plots/*.png`` and ``report.html`` of each run folder."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a finished run")
    args = parser.parse_args(argv)
    from tllib_ext.report.page import write_report

    for run in args.runs:
        print(write_report(run))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
