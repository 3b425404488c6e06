"""Run an experiment of the paper (CVPR 2021) and show the published numbers beside the measured ones.

    python examples/reproduce.py table2 data/office31 -d Office31 --seeds 0-2            images, a GPU, the paper's settings
    python examples/reproduce.py ablation -d features features/office31 --tasks A2D      frozen features, minutes on a CPU

experiments:
    table2       average OS per kind of noise            ct_sweep     against the number of target-private classes
    table3       OS per task at 45 % noise               noise_sweep  against pair and symmetric noise
    ablation     seven variants and the whole method     sensitivity  against alpha, lambda, delta, m and n
    density      of the divergence of common and private images

Runs are kept in OUT/cells and shared among the experiments; stopped and started again it continues. --dry-run prints
the plan and its cost. Any other flag of noisy_unida.py holds for all runs.
"""

import sys

from tllib_ext.cli.parser import Parser, run_main
from tllib_ext.errors import UserError, closest
from tllib_ext.experiments.flags import add_grid_arguments, grid_from_args


def main() -> int:
    """The first word is the experiment, the others are flags."""
    from tllib_ext.experiments.plans import EXPERIMENTS

    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    name = words[0]
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}, the first word: {closest(name, EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    parser = Parser(prog=f"reproduce.py {name}", description=experiment.about)
    defaults = {"methods": experiment.methods, **({"noises": experiment.noises} if experiment.noises else {})}
    add_grid_arguments(parser, "runs/reproduce", {**defaults, "seeds": "0-2"})
    parser.add_argument("--points", metavar="LIST", help="ct_sweep: numbers of classes, 0,11,21; noise_sweep: rates, 0,0.2,0.45")
    args, grid = grid_from_args(parser, words[1:], f"reproduce.py {name}", one_task=experiment.one_task)
    from tllib_ext.experiments.reproduce import reproduce

    return reproduce(name, args, grid)


if __name__ == "__main__":
    sys.exit(run_main(main))
