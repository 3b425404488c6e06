"""Compare methods side by side: a grid of runs and one table per noise, the paper's numbers in brackets.

    {prog} --methods source_only,divergence                      embedded glyphs
    {prog} data/office31_resnet50 -d features --tasks all \\
        --noise pair:0.2,symmetric:0.45 --methods all --seeds 0-2 --jobs 2 --out runs/office
    {prog} data/office31 -s A -t D --methods dance,dance_sel,divergence --noise P20

Every cell is a run folder in OUT/cells. Stopped (Ctrl-C, power) and started again with the same words it continues;
finished cells are kept. --dry-run prints the plan. Any other flag of one run holds for all cells.
"""

from typing import Optional, Sequence

from tllib_ext.cli.grid_flags import add_grid_arguments, parse_grid
from tllib_ext.cli.parser import Parser

__all__ = ["main"]


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext compare") -> int:
    """Plan, run what is missing, write the tables."""
    parser = Parser(prog=prog, usage=f"{prog} [DIR] [flags]", description=(__doc__ or "").replace("{prog}", prog))
    defaults = {"out": "runs/compare"}
    add_grid_arguments(parser, defaults, leave_out=("points",))
    grid, _ = parse_grid(parser, defaults, argv)
    from tllib_ext.experiments.compare import compare

    return compare(grid)
