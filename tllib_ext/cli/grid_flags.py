"""Flags of a grid: those of one run, with lists in place of task, noise, method and seed."""

import dataclasses
import os
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import List, Mapping, Optional, Sequence, Set

from tllib_ext.cli.grid_axes import parse_methods, parse_noises, parse_seeds, parse_tasks
from tllib_ext.cli.parser import Parser, add_run_arguments, add_settings, parse_settings
from tllib_ext.errors import UserError, closest
from tllib_ext.experiments.domains import Domains, Task, domains_in
from tllib_ext.experiments.grid import Grid, GridOptions, Variant
from tllib_ext.methods import METHODS
from tllib_ext.training.config import SHORTHANDS, RunConfig
from tllib_ext.training.resolve import idle_settings
from tllib_ext.training.setting import SEED, SEED_LIMIT, TEXT, setting, settings_of
from tllib_ext.typing import Record

__all__ = ["Axes", "add_grid_arguments", "parse_grid"]

#: settings of one run that a grid makes itself.
_REPLACED = ("noise", "noise_seed", "method", "seed", "log", "overwrite", "resume")
#: settings that only some methods have; a grid gives them to those that do.
_OF_METHODS = ("preset", "hparams", *SHORTHANDS)

_axis = partial(setting, group="grid", metavar="LIST", basic=True)


@dataclass(frozen=True)
class Axes:
    """The lists of a grid as text."""

    tasks: Optional[str] = _axis(None, TEXT, "A2D,W2A or amazon:dslr,… or all; default: -s and -t, else all")
    noises: str = _axis("pair:0.2", TEXT, "pair:0.2,symmetric:0.45,none,matrix.npy or P20,S45", "--noise")
    methods: str = _axis(
        "all", TEXT, "names, all (of this package), tllib (its built-ins), paper (the paper's)", "--methods", "--method", "-m"
    )
    seeds: str = _axis("0", TEXT, "0-2 or 0,5", "--seeds", "--seed")
    noise_seed: str = setting(
        "0", TEXT, "one draw of the noise for all seeds, or same: the run's seed", group="grid", metavar="N"
    )
    out: str = setting(
        "runs", TEXT, "cells and tables; started again it continues", group="grid", metavar="FOLDER", basic=True, in_files=False
    )
    points: Optional[str] = _axis(None, TEXT, "ct_sweep: numbers of classes, 0,11,21; noise_sweep: rates, 0,0.2,0.45")


def add_grid_arguments(parser: Parser, defaults: Mapping[str, str], leave_out: Sequence[str] = ()) -> None:
    """The flags of one run and of a grid of them.

    Args:
        parser (Parser): gets the flags
        defaults (mapping): defaults of some :class:`Axes`
        leave_out (sequence of str): axes without a flag
    """
    add_settings(parser, Axes, leave_out, defaults)
    add_settings(parser, GridOptions)
    add_run_arguments(parser, _REPLACED)


def parse_grid(
    parser: Parser, defaults: Mapping[str, str], argv: Optional[Sequence[str]] = None, one_task: bool = False
) -> "tuple[Grid, Axes]":
    """Parse the words; every mistake in them shows here.

    Args:
        parser (Parser): after :func:`add_grid_arguments`
        defaults (mapping): defaults of some :class:`Axes`
        argv (sequence of str, optional): the words, default: those of the process
        one_task (bool): without ``--tasks`` take the paper's A to D, or the first task, instead of all
    """
    from tllib_ext.evaluation.openset import DEFINITIONS

    of_run = {name: known for name, known in settings_of(RunConfig).items() if name not in _REPLACED}
    of_grid = {**settings_of(Axes), **settings_of(GridOptions)}
    values, _ = parse_settings(parser, {**of_run, **of_grid}, argv)
    axes = Axes(**{**defaults, **_among(values, Axes)})
    options = GridOptions(**_among(values, GridOptions))
    given = RunConfig(**{name: value for name, value in values.items() if name in of_run})
    if options.metric not in DEFINITIONS:
        raise UserError(f"unknown metric {options.metric!r}: {closest(options.metric, DEFINITIONS)}")
    try:
        if axes.noise_seed != "same":
            SEED.read(axes.noise_seed)
    except ValueError:
        raise UserError(f"--noise-seed {axes.noise_seed[:30]!r}: expected a whole number up to {SEED_LIMIT}, or same") from None
    methods, noises, seeds = parse_methods(axes.methods), parse_noises(axes.noises, given.rate), parse_seeds(axes.seeds)
    domains = domains_in(given.root, given.data)
    tasks = _tasks(axes, given, domains)
    unnamed = axes.tasks is None and given.source is None
    if one_task and unnamed:
        tasks = [task for task in tasks if task.label == "A2D"][:1] or tasks[:1]
    defaults_of_run = vars(RunConfig())
    own = {name: defaults_of_run[name] for name in (*_OF_METHODS, "source", "target", "rate")}
    root = None if given.root is None else os.path.realpath(given.root)
    base = dataclasses.replace(given, root=root, **own)
    command = f"{parser.prog} {shlex.join(sys.argv[1:] if argv is None else argv)}"
    default_noises = defaults.get("noises", Axes().noises)
    grid = Grid(domains, tasks, noises, _variants(methods, given), seeds, base, axes.noise_seed, Path(axes.out), command,
                unnamed and axes.noises == default_noises, options)  # fmt: skip
    return grid, axes


def _among(values: Mapping[str, object], cls: type) -> Record:
    return {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}


def _tasks(axes: Axes, given: RunConfig, domains: Domains) -> List[Task]:
    if (given.source is None) != (given.target is None):
        raise UserError("-s and -t belong together; for several tasks: --tasks A2D,W2A")
    if axes.tasks is not None and given.source is not None:
        raise UserError("--tasks, or -s and -t, not both")
    if given.source is not None and given.target is not None:
        return [domains.task(domains.find(given.source), domains.find(given.target))]
    if axes.tasks is None and domains.data == "Glyphs":
        return parse_tasks("P2S", domains)
    return parse_tasks(axes.tasks or "all", domains)


def _variants(methods: Sequence[str], given: RunConfig) -> List[Variant]:
    """A row per method, with those of the given hyper-parameters that it has."""
    wanted = {name: getattr(given, name) for name in _OF_METHODS if getattr(given, name)}
    untrained = {**idle_settings(given), **({} if given.steps is None else {"steps": None})}
    if not wanted and not untrained:
        return [Variant(name, {"method": name}) for name in methods]
    used: Set[str] = set()
    variants: List[Variant] = []
    for method in methods:
        cls = METHODS.get(method)
        known = {f.name for f in dataclasses.fields(cls.Hparams)}
        settings: Record = {"method": method}
        if cls.training_free:
            settings.update(untrained)
        for name, value in wanted.items():
            if name == "hparams":
                value = {key: entry for key, entry in value.items() if key in known}
                used.update(value)
            elif name == "preset":
                value = value if value in cls.presets else None
            elif name not in known:
                value = None
            if value:
                settings[name] = value
                used.add(name)
        variants.append(Variant(method, settings))
    if untrained and all(METHODS.get(method).training_free for method in methods):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in untrained)
        raise UserError(f"{', '.join(methods)} is not trained; leave out {flags}")
    idle = [f"{key}={entry}" for key, entry in given.hparams.items() if key not in used]
    idle += [f"--{name.replace('_', '-')}" for name in wanted if name != "hparams" and name not in used]
    if idle:
        raise UserError(
            f"none of the methods {', '.join(methods)} has {', '.join(idle)}: see tllib-ext train -m METHOD --list-hp"
        )
    return variants
