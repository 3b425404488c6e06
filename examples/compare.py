"""``tllib-ext compare`` as a script; ``python examples/compare.py --help`` explains it."""

import sys

from tllib_ext.cli import compare
from tllib_ext.cli.parser import run_main


def main() -> int:
    """Run the command."""
    return compare.main(prog="python examples/compare.py")


if __name__ == "__main__":
    sys.exit(run_main(main))
