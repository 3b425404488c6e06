"""Train and evaluate a method for noisy universal domain adaptation.

    python examples/noisy_unida.py                                            embedded glyphs, about a minute
    python examples/noisy_unida.py data/office31 -s A -t D --noise pair --rate 0.2
    python examples/noisy_unida.py data/office31 -s A -t D --noise pair -a mobilenet_v2 --freeze-backbone
    python examples/noisy_unida.py my_photos -s labelled -t new --drop-rate 0.1     own folders, target unlabelled

The last line of the log says where the run's files are. Numbers are of the last step; the best step on target labels
appears only under the name oracle.
"""

import sys

from tllib_ext.cli.parser import Parser, add_run_arguments, parse_run, run_main


def main() -> int:
    """Parse the flags, then train (or test) one run."""
    parser = Parser(description=__doc__)
    add_run_arguments(parser)
    args = parse_run(parser)
    from tllib_ext.cli.train import run_from_args

    return run_from_args(args)


if __name__ == "__main__":
    sys.exit(run_main(main))
