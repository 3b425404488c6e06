"""``tllib-ext train`` as a script: train and evaluate a method for noisy universal domain adaptation.

python examples/noisy_unida.py                                            embedded glyphs, about a minute
python examples/noisy_unida.py data/office31 -s A -t D --noise pair --rate 0.2
"""

import sys

from tllib_ext.cli import train
from tllib_ext.cli.parser import run_main


def main() -> int:
    """Train one run."""
    return train.main(prog="python examples/noisy_unida.py")


if __name__ == "__main__":
    sys.exit(run_main(main))
