"""Compare methods side by side: a grid of runs and one table per noise, the paper's numbers in brackets.

    python examples/compare.py --methods source_only,divergence                      embedded glyphs
    python examples/compare.py features/office31 -d features --tasks all \\
        --noise pair:0.2,symmetric:0.45 --methods all --seeds 0-2 --jobs 2 --out runs/office
    python examples/compare.py data/office31 -s A -t D --methods dance,dance_sel,divergence --noise P20

Every cell is a run folder in OUT/cells. Stopped (Ctrl-C, power) and started again with the same words it continues;
finished cells are kept. --dry-run prints the plan. Any other flag of noisy_unida.py holds for all cells.
"""

import sys

from tllib_ext.cli.parser import Parser, run_main
from tllib_ext.experiments.flags import add_grid_arguments, grid_from_args


def main() -> int:
    """Plan, run what is missing, write the tables."""
    parser = Parser(description=__doc__)
    add_grid_arguments(parser, out="runs/compare")
    args, grid = grid_from_args(parser)
    from tllib_ext.experiments.compare import compare

    return compare(args, grid)


if __name__ == "__main__":
    sys.exit(run_main(main))
