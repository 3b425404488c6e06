"""Tables of the runs of all methods on Office-31 features, for the markers ``<!-- runs:NAME -->``; see ``run_tables.py``."""

from typing import Callable, Dict

import numpy as np
from run_tables import METHODS, both, by_learning_rate, by_seed, load, markdown, percent, select, spoken

from tllib_ext.evaluation.validators import VALIDATORS, rank_correlation, ranks
from tllib_ext.report.tables import stat


def thousand_steps() -> str:
    """The runs of version 0.1, mean of six tasks."""
    records = load("office31/comparison.json")
    noises = list(dict.fromkeys(r["noise"] for r in records))
    rows = [[f"`{name}`", *(by_seed(select(records, noise=noise, row=name)) for noise in noises)]
            for name in METHODS if select(records, row=name)]  # fmt: skip
    return markdown(["method", *noises], rows)


def by_steps() -> str:
    """Every method after 300 and 1000 steps: means of two tasks and two noises."""
    runs = {"300 steps": load("all_methods/records.json"), "1000 steps": by_learning_rate()["0.1x"]}
    tasks, noises = ("A2D", "W2A"), ("pair 0.2", "symmetric 0.45")
    rows = []
    for name in METHODS:
        cells = []
        for records in runs.values():
            cells.append(by_seed([r for r in select(records, row=name) if r["task"] in tasks and r["noise"] in noises]))
        rows.append([f"`{name}`", *cells])
    return markdown(["method", *runs], rows)


def corrected_labels() -> str:
    """Every method on the given labels and behind the label model: means of the tasks."""
    treated, given = load("treated_methods/records.json"), load("all_methods/records.json")
    tasks = list(dict.fromkeys(r["task"] for r in treated))
    noises = list(dict.fromkeys(r["noise"] for r in treated))
    rows = []
    for name in METHODS:
        cells = []
        for noise in noises:
            for records in (given, treated):
                cells.append(by_seed([r for r in select(records, row=name, noise=noise) if r["task"] in tasks]))
        rows.append([f"`{name}`", *cells])
    return markdown(["method", *(f"{noise}, {labels}" for noise in noises for labels in ("given", "label-model"))], rows)


def validators() -> str:
    """How the validators rank the methods of a task, noise and seed: correlation with OS, and OS of the one they choose."""
    records = [r for r in load("all_methods/records.json") if r["row"] in METHODS]
    cells = [select(records, task=task, noise=noise, seed=seed)
             for task, noise, seed in dict.fromkeys((r["task"], r["noise"], r["seed"]) for r in records)]  # fmt: skip
    rows = []
    for name in VALIDATORS:
        found, chosen, lost = [], [], []
        for cell in cells:
            place = ranks(name, [r.get(name) for r in cell])
            correlation = rank_correlation(place, [r["os"] for r in cell])
            if correlation is not None and not np.isnan(place).all():
                picked = cell[int(np.nanargmin(place))]["os"]
                found.append(correlation)
                chosen.append(picked)
                lost.append(max(r["os"] for r, p in zip(cell, place) if not np.isnan(p)) - picked)
        if found:
            ranked = max(sum(r.get(name) is not None for r in cell) for cell in cells)
            spread = stat(found)
            assert spread is not None and spread.std is not None
            rows.append([f"`{name}`", str(ranked), f"{spread.mean:+.2f} ± {spread.std:.2f}", percent([float(np.mean(chosen))]),
                         percent([float(np.mean(lost))])])  # fmt: skip
    return markdown(["validator", "methods", "rank correlation with OS", "OS of its choice", "below the best by"], rows)


def uniot_clean() -> str:
    """UniOT with clean labels after 1000 steps, by task."""
    records = load("uniot_clean/records.json")
    tasks = list(dict.fromkeys(r["task"] for r in records))
    return markdown([*map(spoken, tasks), "mean"], [[*(both(select(records, task=task)) for task in tasks), by_seed(records)]])


TABLES: Dict[str, Callable[[], str]] = {
    "by_steps": by_steps,
    "corrected_labels": corrected_labels,
    "thousand_steps": thousand_steps,
    "uniot_clean": uniot_clean,
    "validators": validators,
}
