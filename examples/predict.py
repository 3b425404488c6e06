"""``tllib-ext predict`` as a script; ``python examples/predict.py --help`` explains it."""

import sys

from tllib_ext.cli import predict
from tllib_ext.cli.parser import run_main


def main() -> int:
    """Run the command."""
    return predict.main(prog="python examples/predict.py")


if __name__ == "__main__":
    sys.exit(run_main(main))
