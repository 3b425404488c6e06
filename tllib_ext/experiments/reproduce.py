"""Run an experiment of the paper and show it beside the published numbers."""

from typing import List, Optional, Tuple

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.experiments.compare import legend, metric_label, publish, run_grid, write_results
from tllib_ext.experiments.estimate import dry_run_text
from tllib_ext.experiments.grid import Grid
from tllib_ext.experiments.paper import paper_tables, published, published_ablation
from tllib_ext.experiments.plans import EXPERIMENTS, SENSITIVITY
from tllib_ext.report.comparison_plots import Panel, bars_figure, lines_figure
from tllib_ext.report.plots import Scores, density
from tllib_ext.report.tables import MEAN, Table, make_table
from tllib_ext.typing import Record

__all__ = ["reproduce"]

Records = List[Record]
Made = Tuple[List[Table], Record]


def reproduce(name: str, grid: Grid, values: Optional[str] = None) -> int:
    """Run what is missing of an experiment and write its tables and figures; 1 if a cell failed.

    Args:
        name (str): of the experiment
        grid (Grid): its axes
        values (str, optional): points of a sweep in place of its default ones, ``0,0.2,0.45``
    """
    experiment, options = EXPERIMENTS[name], grid.options
    if experiment.methods == "divergence" and [variant.label for variant in grid.variants] != ["divergence"]:
        raise UserError(f"{name} is about the paper's own method: leave out --methods")
    points = experiment.points(grid, values)
    cells = list({point.cell.name: point.cell for point in points}.values())
    if options.dry_run:
        print(f"{name}: {experiment.about}\n{dry_run_text(cells, grid.out, options.jobs, grid.domains.data, options.card)}")
        return 0
    found, notes = run_grid(grid, cells)
    by_cell = {record["cell"]: record for record in found}
    records = [{**by_cell[point.cell.name], **point.keys} for point in points]
    tables, figures = _SHOWN[name](records, options.metric, grid)
    legends = [legend(records, options.metric, table) for table in tables]
    for table, own, following in zip(tables, legends, [*legends[1:], None]):
        table.legend = [] if own == following else own  # once under several tables that it fits
    return write_results(grid, name, f"{name}: {experiment.about} ({grid.domains.data})", tables, records, figures, notes)


def _label(metric: str) -> str:
    return f"{metric_label(metric)} in %"


def _rows(records: Records) -> List[str]:
    return list(dict.fromkeys(record["row"] for record in records))


def _table2(records: Records, metric: str, grid: Grid) -> Made:
    """Rows methods, columns noises; each number is the mean over the tasks."""
    rows, tasks, codes = _rows(records), [task.label for task in grid.tasks], [noise.code for noise in grid.noises]
    table = Table(f"mean over {', '.join(tasks)}", rows, codes, {}, apart=True)
    for noise in grid.noises:
        part = make_table([r for r in records if r["noise"] == noise.label], metric, rows, tasks, title="")
        table.told.update(part.told)
        column = MEAN if len(tasks) > 1 else tasks[0]
        for variant in grid.variants:
            if (variant.label, column) in part.stats:
                table.stats[variant.label, noise.code] = part.stats[variant.label, column]
            number = published(grid.benchmark, noise.code, variant.settings["method"], tasks)
            publish(table, metric, variant.label, noise.code, number)
    panels = [Table(code, rows, [code], {k: v for k, v in table.stats.items() if k[1] == code},
                    {k: v for k, v in table.paper.items() if k[1] == code}) for code in codes]  # fmt: skip
    return [table], {"table2": bars_figure(panels, _label(metric))}


def _table3(records: Records, metric: str, grid: Grid) -> Made:
    """A table per noise: rows methods, columns tasks and their mean."""
    tasks, tables = [task.label for task in grid.tasks], []
    for noise in grid.noises:
        mine = [record for record in records if record["noise"] == noise.label]
        table = make_table(mine, metric, _rows(mine), tasks, title=noise.code, apart=True)
        for variant in grid.variants:
            for column, names in [*((task, [task]) for task in tasks), (MEAN, tasks)]:
                number = published(grid.benchmark, noise.code, variant.settings["method"], names)
                publish(table, metric, variant.label, column, number)
        tables.append(table)
    return tables, {"table3": bars_figure(tables, _label(metric))}


def _ablation(records: Records, metric: str, grid: Grid) -> Made:
    tasks, tables = [task.label for task in grid.tasks], []
    for noise in grid.noises:
        mine = [record for record in records if record["noise"] == noise.label]
        table = make_table(mine, metric, _rows(mine), tasks, title=f"ablation, {noise.code}", apart=True, corner="variant")
        for part, row in paper_tables()["variants"].items():
            for column, names in [*((task, [task]) for task in tasks), (MEAN, tasks)]:
                publish(table, metric, row, column, published_ablation(grid.benchmark, noise.code, part, names))
        tables.append(table)
    return tables, {"ablation": bars_figure(tables, _label(metric))}


def _sweep(records: Records, metric: str, title: str, axis: str) -> Tuple[Table, Panel]:
    """One curve per row over ``x``, as a table and a panel; tasks, if several, are averaged within a seed first."""
    rows, xs = _rows(records), sorted({record["x"] for record in records})
    tasks = list(dict.fromkeys(record["task"] for record in records))
    table = Table(title, rows, [f"{x:g}" for x in xs], {}, apart=True)
    for x in xs:
        part = make_table([r for r in records if r["x"] == x], metric, rows, tasks, title="")
        column = MEAN if len(tasks) > 1 else tasks[0]
        table.stats.update({(row, f"{x:g}"): part.stats[row, column] for row in rows if (row, column) in part.stats})
    lines = {row: [(x, table.stats[row, f"{x:g}"]) for x in xs if (row, f"{x:g}") in table.stats] for row in rows}
    return table, Panel(title, axis, lines)


def _ct_sweep(records: Records, metric: str, grid: Grid) -> Made:
    axis = "number of target-private classes"
    made = [_sweep([r for r in records if r["noise"] == noise.label], metric, f"{noise.code}, by {axis}", axis)
            for noise in grid.noises]  # fmt: skip
    return [table for table, _ in made], {"ct_sweep": lines_figure([panel for _, panel in made], _label(metric))}


def _noise_sweep(records: Records, metric: str, grid: Grid) -> Made:
    tables, panels = [], []
    tasks = [task.label for task in grid.tasks]
    for kind in ("pair", "symmetric"):
        mine = [record for record in records if record["noise"] == kind]
        table, panel = _sweep(mine, metric, f"{kind} noise", f"rate of {kind} noise")
        for variant in grid.variants:
            for record in mine:
                number = published(grid.benchmark, record["code"], variant.settings["method"], tasks)
                publish(table, metric, variant.label, f"{record['x']:g}", number)
        tables.append(table)
        panels.append(panel)
    return tables, {"noise_sweep": lines_figure(panels, _label(metric))}


def _sensitivity(records: Records, metric: str, grid: Grid) -> Made:
    tables, panels = [], []
    for task, code in dict.fromkeys((record["task"], record["code"]) for record in records):
        for symbol in SENSITIVITY:
            mine = [{**r, "row": grid.variants[0].label} for r in records
                    if (r["task"], r["code"], r["row"]) == (task, code, symbol)]  # fmt: skip
            table, panel = _sweep(mine, metric, f"{task} {code}: {symbol}", symbol)
            tables.append(table)
            panels.append(panel)
    return tables, {"sensitivity": lines_figure(panels, _label(metric), columns=len(SENSITIVITY))}


def _density(records: Records, metric: str, grid: Grid) -> Made:
    """The divergence of common and private target images, all seeds together, read from the cells' predictions."""
    from tllib_ext.evaluation.files import load_split, read_predictions

    panels = []
    for key in dict.fromkeys((record["task"], record["noise"]) for record in records):
        done = [r for r in records if (r["task"], r["noise"]) == key and "error" not in r]
        score, unknown, threshold = [], [], float("nan")
        for record in done:
            folder = grid.out / "cells" / record["cell"]
            split = load_split(folder / "config.json")
            found = read_predictions(folder / "predictions.csv", split)
            score.append(found.score[found.labelled])
            unknown.append(found.label[found.labelled] == split.unknown)
            threshold = float(found.threshold[0])
        if done:
            panels.append(Scores(" ".join(key), np.concatenate(score), np.concatenate(unknown), threshold))
    rows = list(dict.fromkeys(f"{record['task']} {record['noise']}" for record in records))
    long = [{"row": f"{r['task']} {r['noise']}", "column": name, "seed": r["seed"], "value": r.get(name)}
            for r in records for name in ("auroc", "os", "os_star", "unk")]  # fmt: skip
    table = make_table(long, "value", rows, ["auroc", "os", "os_star", "unk"], mean=False, column_key="column",
                       title="how well the divergence separates", corner="task")  # fmt: skip
    return [table], {"density": density(panels, "divergence of the two heads")} if panels else {}


_SHOWN = {"table2": _table2, "table3": _table3, "ablation": _ablation, "ct_sweep": _ct_sweep, "noise_sweep": _noise_sweep,
          "sensitivity": _sensitivity, "density": _density}  # fmt: skip
