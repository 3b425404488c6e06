r"""The experiments of the paper as grids: which runs each of its tables and figures is made of.

Several points of a figure may be the same run (every curve of the sensitivity passes through the defaults), and the
same run may serve several experiments: its folder is named by what it is, not by who asked for it.
"""

import math
from dataclasses import replace
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tllib_ext.errors import UserError
from tllib_ext.experiments.grid import Cell, Grid, Noise, Variant, plan
from tllib_ext.experiments.paper import paper_tables
from tllib_ext.split import PRESETS
from tllib_ext.typing import Record

__all__ = ["EXPERIMENTS", "Experiment", "Point", "SENSITIVITY"]

#: the paper's benchmark -> preset of label sets.
_PRESETS = {"office": "Office31", "officehome": "OfficeHome", "visda": "VisDA2017"}

#: symbol in the paper -> (flag of the method, values); alpha is the share of a batch that is dropped.
SENSITIVITY: Dict[str, Tuple[str, Sequence[float]]] = {
    "alpha": ("drop_rate", (0.0, 0.1, 0.2, 0.3, 0.45, 0.6)),
    "lambda": ("lam", (0.0, 0.01, 0.1, 0.5, 1.0)),
    "delta": ("delta", (1.0, 2.0, 3.0, 4.0, 5.0)),
    "m": ("m", (0.0, 0.5, 1.0, 1.5, 2.0)),
    "n": ("n", (1, 2, 4, 6, 8)),
}
#: the method's defaults among those values: not a run of their own.
_DEFAULTS = {"lam": 0.1, "m": 1.0, "n": 4}


class Point(NamedTuple):
    """Where a run stands in the experiment's tables and figures: ``row task noise seed`` and, in a sweep, ``x``."""

    keys: Record
    cell: Cell


class Experiment(NamedTuple):
    """What an experiment is called, its default axes, and its points."""

    about: str
    noises: Optional[str]
    methods: str
    one_task: bool
    points: Callable[[Grid, Optional[str]], List[Point]]


def _whole(grid: Grid, sizes: Optional[str]) -> List[Point]:
    _no_points(sizes)
    return [Point(cell.keys, cell) for cell in grid.cells()]


def _no_points(text: Optional[str]) -> None:
    if text is not None:
        raise UserError("--points is for ct_sweep (sizes) and noise_sweep (rates)")


def _with_hparams(settings: Record, more: Dict[str, str]) -> Record:
    """The settings with further hyper-parameters; without any they stay what every other experiment has."""
    hparams = {**settings.get("hparams", {}), **more}
    return {**settings, "hparams": hparams} if hparams else dict(settings)


def _ablation(grid: Grid, sizes: Optional[str]) -> List[Point]:
    _no_points(sizes)
    rows = []
    for part, label in paper_tables()["variants"].items():
        settings = _with_hparams(grid.variants[0].settings, {"ablate": part} if part else {})
        rows.append(Variant(label, settings, f"divergence_{part}" if part else "divergence"))
    return [Point(c.keys, c) for c in plan(grid.base, grid.tasks, grid.noises, rows, grid.seeds, grid.noise_seed)]


def _ct_sweep(grid: Grid, sizes: Optional[str]) -> List[Point]:
    r""":math:`|C_s \cup C_t|` and :math:`C` fixed: what the target gains, the source loses."""
    preset = _PRESETS.get(grid.domains.benchmark or "", "")
    given = grid.base.split or ("10/10/11" if grid.domains.data == "Glyphs" else None)
    if given is not None:
        prefix, _, counts = str(given).rpartition(":")
        try:
            a, b, c = (int(part) for part in counts.split("/"))
        except ValueError:
            raise UserError(f"ct_sweep --split {given!r}: expected a/b/c; it keeps a and shares out b + c") from None
    elif preset:
        prefix, split = preset, PRESETS[preset]
        a, b, c = len(split.shared), len(split.source_private), len(split.target_private)
    else:
        raise UserError("ct_sweep needs the classes of Office31, OfficeHome or VisDA2017, or --split a/b/c: it shares out b + c")
    rest, points = b + c, []
    for size in _numbers(sizes, rest) if sizes else sorted({round(i * rest / 6) for i in range(7)} | {c}):
        if size == c:  # the benchmark's own label sets
            base, mark = grid.base, ""
        else:
            text = f"{prefix + ':' if prefix else ''}{a}/{rest - size}/{size}"
            base, mark = replace(grid.base, split=text), f"_ct{size}"
        rows = [variant._replace(name=variant.label + mark) for variant in grid.variants]
        for cell in plan(base, grid.tasks, grid.noises, rows, grid.seeds, grid.noise_seed):
            points.append(Point({**cell.keys, "x": size}, cell))
    return points


def _numbers(text: str, most: int) -> List[int]:
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) <= most for word in words):
        raise UserError(f"--points {text}: expected numbers of target-private classes from 0 to {most}, e.g. 0,{most}")
    return sorted({int(word) for word in words})


def _noise_sweep(grid: Grid, rates: Optional[str]) -> List[Point]:
    try:
        values = sorted({float(word) for word in (rates or "0,0.1,0.2,0.3,0.4,0.45").split(",")})
        if not all(0 <= value < 1 for value in values):
            raise ValueError
    except ValueError:
        raise UserError(f"--points {rates}: expected noise rates in [0, 1), e.g. 0,0.2,0.45") from None
    points = []
    for kind in ("pair", "symmetric"):
        for rate in values:
            noise = Noise(kind, rate) if rate else Noise("none", 0.0)
            for cell in plan(grid.base, grid.tasks, [noise], grid.variants, grid.seeds, grid.noise_seed):
                points.append(Point({**cell.keys, "noise": kind, "code": noise.code, "x": rate}, cell))
    return points


def _sensitivity(grid: Grid, sizes: Optional[str]) -> List[Point]:
    _no_points(sizes)
    # The paper's two settings, unless tasks or noises were asked for.
    pairs = [(task, noise) for task in grid.tasks for noise in grid.noises]
    if grid.paper_settings and grid.domains.benchmark == "office":
        names = grid.domains
        pairs = [(names.task("amazon", "dslr"), Noise("pair", 0.2)), (names.task("dslr", "webcam"), Noise("symmetric", 0.45))]
    points = []
    for task, noise in pairs:
        for symbol, (flag, values) in SENSITIVITY.items():
            for value in values:
                default = math.isclose(value, noise.rate) if flag == "drop_rate" else _DEFAULTS.get(flag) == value
                own = grid.variants[0].settings
                change = {} if default else {flag: f"{value:g}"}
                name = "_".join(["divergence", *(f"{key}={text}" for key, text in change.items())])
                row = Variant(symbol, _with_hparams(own, change), name)
                for cell in plan(grid.base, [task], [noise], [row], grid.seeds, grid.noise_seed):
                    points.append(Point({**cell.keys, "code": noise.code, "x": value}, cell))
    return points


#: name on the command line -> experiment.
EXPERIMENTS: Dict[str, Experiment] = {
    "table2": Experiment("average OS per kind of noise", "P20,P45,S20,S45", "paper", False, _whole),
    "table3": Experiment("OS per task at 45 % noise", "P45,S45", "paper", False, _whole),
    "ablation": Experiment("Table 4: what each part is worth", "P20", "divergence", False, _ablation),
    "ct_sweep": Experiment("accuracy against the number of target-private classes", "P20", "paper", True, _ct_sweep),
    "noise_sweep": Experiment("accuracy against pair and symmetric noise", None, "paper", True, _noise_sweep),
    "sensitivity": Experiment("accuracy against alpha, lambda, delta, m and n", "P20", "divergence", True, _sensitivity),
    "density": Experiment("density of the divergence of common and private images", "P20", "divergence", True, _whole),
}
