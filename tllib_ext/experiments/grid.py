"""The cells of a grid: tasks x noises x methods x seeds, one run each."""

import hashlib
import re
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple

from tllib_ext.errors import UserError
from tllib_ext.experiments.cards import CARDS
from tllib_ext.experiments.domains import Domains, Task
from tllib_ext.experiments.paper import noise_code
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import COUNT, FLAG, TEXT, check_fields, choice, setting
from tllib_ext.typing import Record

__all__ = ["Noise", "Variant", "Cell", "Grid", "GridOptions", "plan", "folder_name"]

#: folders longer than this are refused by some file systems together with the run's own files.
NAME_LIMIT = 150


class Noise(NamedTuple):
    """A kind of label noise and its rate."""

    kind: str
    rate: float

    @property
    def label(self) -> str:
        """For titles and folders: ``pair 0.2``, ``clean``."""
        return "clean" if self.kind == "none" else f"{Path(self.kind).stem} {self.rate:g}"

    @property
    def code(self) -> str:
        """The paper's code, ``P20``."""
        return noise_code(self.kind, self.rate)


class Variant(NamedTuple):
    """A row of a table: its label, the settings that make it, and its part of the folder's name if not the label."""

    label: str
    settings: Record
    name: Optional[str] = None


@dataclass(frozen=True)
class Cell:
    """One run of a grid: its folder's name, its place in the table, its configuration."""

    name: str
    keys: Record = field(hash=False)
    config: RunConfig = field(hash=False)


_option = partial(setting, group="running the grid")


@dataclass(frozen=True)
class GridOptions:
    """How a grid is run and which number its tables show."""

    jobs: int = _option(1, COUNT, "cells at a time, a process with --threads (default: 1) each", metavar="N", basic=True)
    metric: str = _option("os", TEXT, "os, os_star, unk, h_score, accuracy, auroc, …", metavar="NAME", basic=True)
    overwrite: bool = _option(False, FLAG, "start cells anew that are unfinished or have other settings", in_files=False)
    keep_models: bool = _option(False, FLAG, "keep each cell's model and checkpoint, some MB")
    tensorboard: bool = _option(False, FLAG, "keep each cell's tensorboard files: tensorboard --logdir OUT/cells")
    dry_run: bool = _option(False, FLAG, "print the plan and what it will cost, and stop", basic=True)
    card: str = _option("V100", choice(*CARDS), "the GPU that --dry-run counts hours and memory for")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def keep(self) -> Tuple[str, ...]:
        """Heavy files of a cell that are kept."""
        return ("checkpoints", "model.safetensors") * self.keep_models + ("tb",) * self.tensorboard


@dataclass(frozen=True)
class Grid:
    """The axes of a grid as given, and what all its cells have in common."""

    domains: Domains
    tasks: List[Task]
    noises: List[Noise]
    variants: List[Variant]
    seeds: List[int]
    base: RunConfig
    noise_seed: str
    out: Path
    command: str
    #: neither tasks nor noises were named: an experiment takes the paper's
    paper_settings: bool = False
    options: GridOptions = GridOptions()

    def cells(self) -> List[Cell]:
        """Every combination."""
        return plan(self.base, self.tasks, self.noises, self.variants, self.seeds, self.noise_seed)

    @property
    def benchmark(self) -> Optional[str]:
        """The paper's name of the data, None if the label sets are not the paper's."""
        return None if self.base.split else self.domains.benchmark


def plan(
    base: RunConfig, tasks: Sequence[Task], noises: Sequence[Noise], variants: Sequence[Variant], seeds: Sequence[int],
    noise_seed: str = "0",
) -> List[Cell]:  # fmt: skip
    """Every combination as a :class:`Cell`, the seeds outermost: a first table is complete early.

    Args:
        base (RunConfig): the settings common to all cells
        tasks, noises, variants, seeds: the axes
        noise_seed (str): a number for all cells, or ``same``: each run's own seed

    Examples::

        >>> cells = plan(RunConfig(steps=5), [Task("amazon", "dslr", "A2D")], [Noise("pair", 0.2)],
        ...              [Variant("dance", {"method": "dance"})], [0, 1])
        >>> cells[1].name
        'amazon2dslr_pair0.2_dance_seed1'
    """
    cells = []
    for seed, noise, task, variant in product(seeds, noises, tasks, variants):
        keys = {"row": variant.label, "task": task.label, "noise": noise.label, "seed": seed}
        config = replace(base, source=task.source, target=task.target, noise=noise.kind, rate=noise.rate, seed=seed,
                         noise_seed=seed if noise_seed == "same" else int(noise_seed), **variant.settings)  # fmt: skip
        words = [f"{task.source}2{task.target}", noise.label.replace(" ", ""), variant.name or variant.label, f"seed{seed}"]
        cells.append(Cell(folder_name("_".join(words)), keys, config))
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise UserError("two cells of the grid have the same folder: use distinct names of domains, methods and matrix files")
    return cells


def folder_name(text: str) -> str:
    """Letters, digits and ``. _ + = -`` only, never hidden, not too long; what had to change gets a digest.

    Examples::

        >>> folder_name("tllib:dann"), folder_name("../a b")
        ('tllib-dann', 'a-b-2c2c79')
    """
    plain = text.replace(":", "-")
    name = re.sub(r"[^A-Za-z0-9._+=-]+", "-", plain).strip(".-")
    if name == plain and len(name) <= NAME_LIMIT:
        return name
    return f"{name[: NAME_LIMIT - 7]}-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"
