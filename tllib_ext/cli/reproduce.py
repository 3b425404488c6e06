"""Run an experiment of the paper (CVPR 2021) and show the published numbers beside the measured ones.

    {prog} table2 data/office31 -d Office31 --seeds 0-2            images, a GPU, the paper's settings
    {prog} ablation -d features data/office31_resnet50 --tasks A2D      frozen features, minutes on a CPU

experiments:
    table2       average OS per kind of noise            ct_sweep     against the number of target-private classes
    table3       OS per task at 45 % noise               noise_sweep  against pair and symmetric noise
    ablation     seven variants and the whole method     sensitivity  against alpha, lambda, delta, m and n
    density      of the divergence of common and private images

Runs are kept in OUT/cells and shared among the experiments; stopped and started again it continues. --dry-run prints
the plan and its cost. Any other flag of one run holds for all runs.
"""

import sys
from typing import Optional, Sequence

from tllib_ext.cli.grid_flags import add_grid_arguments, parse_grid
from tllib_ext.cli.parser import Parser
from tllib_ext.errors import UserError, closest

__all__ = ["main"]


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext reproduce") -> int:
    """The first word is the experiment, the others are flags."""
    from tllib_ext.experiments.plans import EXPERIMENTS

    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print((__doc__ or "").replace("{prog}", prog))
        return 0
    name = words[0]
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}, the first word: {closest(name, EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    parser = Parser(prog=f"{prog} {name}", usage=f"{prog} {name} [DIR] [flags]", description=experiment.about)
    defaults = {"methods": experiment.methods, "seeds": "0-2", "out": "runs/reproduce"}
    if experiment.noises:
        defaults["noises"] = experiment.noises
    add_grid_arguments(parser, defaults)
    grid, axes = parse_grid(parser, defaults, words[1:], one_task=experiment.one_task)
    from tllib_ext.experiments.reproduce import reproduce

    return reproduce(name, grid, axes.points)
