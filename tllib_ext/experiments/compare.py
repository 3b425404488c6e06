"""What ``examples/compare.py`` does after parsing: run the grid, then a table per noise."""

import argparse
from datetime import date
from typing import Any, Dict, List, Sequence, Tuple

from tllib_ext.evaluation.openset import DEFINITIONS
from tllib_ext.experiments.estimate import dry_run_text
from tllib_ext.experiments.flags import Grid
from tllib_ext.experiments.grid import Cell, Noise
from tllib_ext.experiments.paper import paper_tables, published
from tllib_ext.experiments.pool import run_cells
from tllib_ext.experiments.runner import check_cells, collect
from tllib_ext.report.comparison import write_comparison
from tllib_ext.report.comparison_plots import bars_figure
from tllib_ext.report.style import png_bytes
from tllib_ext.report.table_formats import to_text
from tllib_ext.report.tables import MEAN, Table, make_table

__all__ = ["compare", "run_grid", "noise_table", "legend"]

#: what a legend says of the runs.
_STATED = ("arch", "steps", "batch_size", "split", "seed", "noise_seed")


def compare(args: argparse.Namespace, grid: Grid) -> int:
    """Run what is missing and write the comparison; 1 if a cell failed."""
    cells = grid.cells()
    if args.dry_run:
        print(dry_run_text(cells, grid.out, args.jobs, grid.domains.data))
        return 0
    records, notes = run_grid(args, grid, cells)
    tables = [noise_table(records, noise, args.metric, grid) for noise in grid.noises]
    for table in tables:
        print(to_text(table), end="\n\n")
    name = DEFINITIONS[args.metric].partition(":")[0] if ":" in DEFINITIONS[args.metric] else args.metric
    figure = bars_figure(tables, f"{name} in %")
    paths = write_comparison(grid.out, "comparison", f"{name} on {grid.domains.data}", tables, records, grid.command,
                             {"comparison": png_bytes(figure)}, notes)  # fmt: skip
    for note in notes:
        print(note)
    print(f"files: {', '.join(map(str, paths))}")
    return 1 if notes else 0


def run_grid(args: argparse.Namespace, grid: Grid, cells: Sequence[Cell]) -> Tuple[List[Dict[str, Any]], List[str]]:
    """Run the cells that are missing; the records of all, and a line per cell that failed."""
    todo = check_cells(cells, grid.out, args.overwrite)
    if todo:
        failed = run_cells(todo, grid.out, args.jobs, args.keep_models, len(cells))
    else:
        failed = []
        print(f"all {len(cells)} cells in {grid.out} are finished")
    return collect(cells, grid.out), [f"failed: {cell.name}: {error}" for cell, error in failed]


def noise_table(records: Sequence[Dict[str, Any]], noise: Noise, metric: str, grid: Grid) -> Table:
    """Rows methods, columns tasks and their mean; the paper's OS in brackets."""
    mine = [record for record in records if record["noise"] == noise.label]
    rows = [variant.label for variant in grid.variants]
    tasks = [task.label for task in grid.tasks]
    title = f"{noise.label} ({noise.code})" if noise.code in paper_tables()["noise"] else noise.label
    table = make_table(mine, metric, rows, tasks, title=title)
    if metric == "os":
        for variant in grid.variants:
            for column, names in [*((t, [t]) for t in tasks), (MEAN, tasks)]:
                number = published(grid.benchmark, noise.code, variant.settings["method"], names)
                if number is not None and column in table.columns:
                    table.paper[variant.label, column] = number
    table.legend = legend(mine, metric, table)
    return table


def legend(records: Sequence[Dict[str, Any]], metric: str, table: Table) -> List[str]:
    """What the numbers are: metric, step, backbone, seeds, noise draw; what the bracketed ones are."""
    done = [record for record in records if "error" not in record]
    marked = "; best of each column marked" if len(table.rows) > 1 else ""
    lines = [f"{DEFINITIONS[metric]}; in %, mean ± standard deviation (ddof 1) over (n) seeds{marked}"]
    if done:
        words = {name: ", ".join(dict.fromkeys(str(record.get(name)) for record in done)) for name in _STATED}
        # Of the runs, not of today: a grid may have been continued by a later version.
        commits = [str(found)[:10] for found in dict.fromkeys(record.get("commit") for record in done) if found]
        code = f", commit {', '.join(commits)}" if commits else ""
        frozen = " frozen" if any(record.get("freeze_backbone") for record in done) else ""
        backbone = "frozen features, bottleneck trained" if words["arch"] == "None" else words["arch"] + frozen
        lines.append(
            f"last step of {words['steps']}, batch {words['batch_size']} per domain; {backbone}; label sets {words['split']}; "
            f"seeds {words['seed']}, noise seeds {words['noise_seed']}; {date.today().isoformat()}{code}"
        )
    if table.paper:
        lines.append(f"published numbers: {paper_tables()['source']}; {paper_tables()['setting']}, single runs")
    missing = len(records) - len(done)
    return [*lines, f"{missing} of {len(records)} cells missing"] if missing else lines
