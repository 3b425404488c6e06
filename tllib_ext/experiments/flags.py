"""Command-line flags of a grid: those of one run, with its axes in place of task, noise, method and seed."""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tllib_ext.cli.parser import SEED_LIMIT, _positive, _seed, add_run_arguments, parse_run
from tllib_ext.errors import UserError, closest
from tllib_ext.experiments.domains import Domains, Task, domains_in
from tllib_ext.experiments.grid import (
    Cell,
    Noise,
    Variant,
    parse_methods,
    parse_noises,
    parse_seeds,
    parse_tasks,
    plan,
    run_settings,
)
from tllib_ext.experiments.runner import run_defaults
from tllib_ext.methods import METHODS

__all__ = ["Grid", "add_grid_arguments", "grid_from_args"]

#: flags of one run that a grid sets itself.
_REPLACED = ("noise", "noise_seed", "method", "seed", "log", "phase", "list_hp", "overwrite", "resume")
#: flags that only some methods have; a grid gives them to those that do.
_OF_METHODS = ("preset", "hp", "drop_rate", "heads", "unknown_rule", "unknown_threshold")


@dataclasses.dataclass
class Grid:
    """The axes of a grid as given, and what all its cells have in common."""

    domains: Domains
    tasks: List[Task]
    noises: List[Noise]
    variants: List[Variant]
    seeds: List[int]
    base: Dict[str, Any]
    noise_seed: str
    out: Path
    command: str
    #: neither tasks nor noises were named: an experiment takes the paper's
    paper_settings: bool = False

    def cells(self) -> List[Cell]:
        """Every combination."""
        return plan(self.base, self.tasks, self.noises, self.variants, self.seeds, self.noise_seed)

    @property
    def benchmark(self) -> Optional[str]:
        """The paper's name of the data, None if the label sets are not the paper's."""
        return None if self.base.get("split") else self.domains.benchmark


def add_grid_arguments(parser: argparse.ArgumentParser, out: str, defaults: Optional[Dict[str, str]] = None) -> None:
    """The flags of one run and of a grid of them; ``defaults`` replaces those of the axes."""
    add_run_arguments(parser)
    for action in list(parser._actions):
        if action.dest in _REPLACED:
            _remove(parser, action)
    given = {"tasks": None, "noises": "pair:0.2", "methods": "all", "seeds": "0", **(defaults or {})}
    g = parser.add_argument_group("grid")
    g.add_argument(
        "--tasks",
        default=given["tasks"],
        metavar="LIST",
        help=f"A2D,W2A or amazon:dslr,… or all; default: {given['tasks'] or '-s and -t, else all'}",
    )
    g.add_argument(
        "--noise",
        dest="noises",
        default=given["noises"],
        metavar="LIST",
        help=f"pair:0.2,symmetric:0.45,none,matrix.npy or P20,S45 (default: {given['noises']})",
    )
    g.add_argument(
        "-m",
        "--methods",
        "--method",
        dest="methods",
        default=given["methods"],
        metavar="LIST",
        help=f"names, all (of this package), tllib (its built-ins), paper (the paper's); default: {given['methods']}",
    )
    g.add_argument(
        "--seeds", "--seed", dest="seeds", default=given["seeds"], metavar="LIST", help=f"0-2 or 0,5 (default: {given['seeds']})"
    )
    g.add_argument(
        "--noise-seed", default="0", metavar="N", help="one draw of the noise for all seeds (default: 0), or same: the run's seed"
    )
    g.add_argument(
        "--jobs", type=_positive, default=1, metavar="N", help="cells at a time, a process with one thread each (default: 1)"
    )
    g.add_argument("--metric", default="os", metavar="NAME", help="os (default), os_star, unk, h_score, accuracy, auroc, …")
    g.add_argument("--out", default=out, metavar="FOLDER", help=f"cells and tables; started again it continues (default: {out})")
    g.add_argument("--overwrite", action="store_true", help="start cells anew that are unfinished or were made with other flags")
    g.add_argument("--keep-models", action="store_true", help="keep each cell's model and checkpoint, some MB")
    g.add_argument("--dry-run", action="store_true", help="print the plan and what it will cost, and stop")


def _remove(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    parser._actions.remove(action)
    for option in action.option_strings:
        del parser._option_string_actions[option]
    for group in parser._action_groups:
        if action in group._group_actions:
            group._group_actions.remove(action)


def grid_from_args(
    parser: argparse.ArgumentParser, argv: Optional[Sequence[str]] = None, script: str = "compare.py", one_task: bool = False
) -> Any:
    """Parse the words; returns the flags and the :class:`Grid`. Every mistake in them shows here.

    Args:
        parser (ArgumentParser): after :func:`add_grid_arguments`
        argv (sequence of str, optional): the words, default: those of the process
        script (str): for the command in the legend
        one_task (bool): without ``--tasks`` take the paper's A to D, or the first task, instead of all
    """
    from tllib_ext.evaluation.openset import DEFINITIONS

    args = parse_run(parser, argv)
    if args.metric not in DEFINITIONS:
        raise UserError(f"unknown metric {args.metric!r}: {closest(args.metric, DEFINITIONS)}")
    try:
        if args.noise_seed != "same":
            _seed(args.noise_seed)
    except (ValueError, argparse.ArgumentTypeError):
        raise UserError(f"--noise-seed {args.noise_seed[:30]!r}: expected a whole number up to {SEED_LIMIT}, or same") from None
    methods = parse_methods(args.methods)
    noises, seeds = parse_noises(args.noises, args.rate), parse_seeds(args.seeds)
    domains = domains_in(args.root, args.data)
    base = run_settings(args, run_defaults())
    for name in (*_OF_METHODS, "source", "target", "rate"):
        base.pop(name, None)
    tasks = _tasks(args, domains)
    unnamed = args.tasks is None and args.source is None
    if one_task and unnamed:
        tasks = [task for task in tasks if task.label == "A2D"][:1] or tasks[:1]
    command = f"python examples/{script} " + shlex.join(sys.argv[1:] if argv is None else argv)
    grid = Grid(domains, tasks, noises, _variants(methods, args), seeds, base, args.noise_seed, Path(args.out), command,
                unnamed and args.noises == parser.get_default("noises"))  # fmt: skip
    return args, grid


def _tasks(args: argparse.Namespace, domains: Domains) -> List[Task]:
    if (args.source is None) != (args.target is None):
        raise UserError("-s and -t belong together; for several tasks: --tasks A2D,W2A")
    if args.tasks is not None and args.source is not None:
        raise UserError("--tasks, or -s and -t, not both")
    if args.source is not None:
        return [domains.task(domains.find(args.source), domains.find(args.target))]
    if args.tasks is None and domains.data == "Glyphs":
        return parse_tasks("P2S", domains)
    return parse_tasks(args.tasks or "all", domains)


def _variants(methods: Sequence[str], args: argparse.Namespace) -> List[Variant]:
    """A row per method, with those of the given hyper-parameters that it has."""
    given = {name: getattr(args, name) for name in _OF_METHODS if getattr(args, name)}
    if not given:
        return [Variant(name, {"method": name}) for name in methods]
    used, variants = set(), []
    for method in methods:
        cls = METHODS.get(method)
        known = {f.name for f in dataclasses.fields(cls.Hparams)}
        settings: Dict[str, Any] = {"method": method}
        for name, value in given.items():
            if name == "hp":
                value = [item for item in value if item.partition("=")[0] in known]
                used.update(value)
            elif name == "preset":
                value = value if value in cls.presets else None
            elif name not in known:
                value = None
            if value:
                settings[name] = value
                used.add(name)
        variants.append(Variant(method, settings))
    idle = [item for item in args.hp if item not in used]
    idle += [f"--{name.replace('_', '-')}" for name in given if name != "hp" and name not in used]
    if idle:
        raise UserError(f"none of the methods {', '.join(methods)} has {', '.join(idle)}: see noisy_unida.py -m METHOD --list-hp")
    return variants
