"""``tllib-ext reproduce`` as a script; ``python examples/reproduce.py --help`` explains it."""

import sys

from tllib_ext.cli import reproduce
from tllib_ext.cli.parser import run_main


def main() -> int:
    """Run the command."""
    return reproduce.main(prog="python examples/reproduce.py")


if __name__ == "__main__":
    sys.exit(run_main(main))
