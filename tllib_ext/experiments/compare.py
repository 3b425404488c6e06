"""Run a grid, then write a table per noise."""

from datetime import date
from typing import Dict, List, Optional, Sequence, Tuple

from tllib_ext.evaluation.openset import DEFINITIONS
from tllib_ext.experiments.estimate import dry_run_text
from tllib_ext.experiments.grid import Cell, Grid, Noise
from tllib_ext.experiments.paper import paper_tables, published
from tllib_ext.experiments.pool import run_cells
from tllib_ext.experiments.runner import check_cells, read_records, state_of
from tllib_ext.io import read_json_lines
from tllib_ext.report.comparison import write_comparison
from tllib_ext.report.comparison_plots import Panel, bars_figure, lines_figure
from tllib_ext.report.style import png_bytes
from tllib_ext.report.table_formats import to_text
from tllib_ext.report.tables import MEAN, Stat, Table, make_table, stat
from tllib_ext.training.inputs import fetch_inputs
from tllib_ext.training.run_dir import Lock
from tllib_ext.typing import Record

__all__ = ["compare", "run_grid", "write_results", "noise_table", "publish", "legend", "metric_label"]

#: settings that a legend names.
_STATED = ("arch", "batch_size", "split", "seed", "noise_seed")
#: what the figure of curves shows beside the table's metric: label and factor.
_CURVES = {
    "h_score": ("H-score in %", 100.0),
    "train_loss": ("training loss", 1.0),
    "train_kept": ("source kept in %", 100.0),
    "train_known": ("target taken as known in %", 100.0),
}


def compare(grid: Grid) -> int:
    """Run what is missing and write the comparison; 1 if a cell failed."""
    cells, options = grid.cells(), grid.options
    if options.dry_run:
        print(dry_run_text(cells, grid.out, options.jobs, grid.domains.data, options.card))
        return 0
    records, notes = run_grid(grid, cells)
    tables = [noise_table(records, noise, options.metric, grid) for noise in grid.noises]
    name = metric_label(options.metric)
    figures = {"comparison": bars_figure(tables, f"{name} in %")}
    # A row of panels for each quantity that some method recorded, a column for each noise.
    done = [record for record in records if "error" not in record]
    history = {r["cell"]: read_json_lines(grid.out / "cells" / r["cell"] / "results.jsonl") for r in done}
    curves = {key: [_curves(done, history, noise, grid, key) for noise in grid.noises] for key in (options.metric, *_CURVES)}
    panels = [panel for row in curves.values() if any(found.lines for found in row) for panel in row]
    if panels:
        figures["curves"] = lines_figure(panels, f"{name} in %", columns=len(grid.noises))
    return write_results(grid, "comparison", f"{name} on {grid.domains.data}", tables, records, figures, notes)


def metric_label(metric: str) -> str:
    """A metric as its definition writes it: ``OS*`` for ``os_star``."""
    head, colon, _ = DEFINITIONS[metric].partition(":")
    return head if colon else metric


def write_results(
    grid: Grid, name: str, title: str, tables: List[Table], records: List[Record], figures: Record, notes: List[str]
) -> int:
    """Print the tables and write ``name.*`` with the figures; 1 if there are notes of failed cells."""
    for table in tables:
        print(to_text(table), end="\n\n")
    pictures = {stem: png_bytes(figure) for stem, figure in figures.items()}
    paths = write_comparison(grid.out, name, title, tables, records, grid.command, pictures, notes)
    print(*notes, f"files: {', '.join(map(str, paths))}", sep="\n")
    return 1 if notes else 0


def run_grid(grid: Grid, cells: Sequence[Cell]) -> Tuple[List[Record], List[str]]:
    """Run the cells that are missing; the records of all, and a line per cell that failed."""
    options = grid.options
    unfinished = [cell.config for cell in cells if state_of(cell, grid.out) != "finished"]
    for config in {(config.data, config.root, config.arch, config.weights): config for config in unfinished}.values():
        fetch_inputs(config, weights_alone=True)  # once, here, and not in every process
    lock = Lock(grid.out)  # a second grid in the folder could replace the cells of this one
    try:
        todo = check_cells(cells, grid.out, options.overwrite)
        failed = run_cells(todo, grid.out, options.jobs, options.keep, len(cells)) if todo else []
    finally:
        lock.release()
    if not todo:
        print(f"all {len(cells)} cells in {grid.out} are finished")
    return read_records(cells, grid.out), [f"failed: {cell.name}: {error}" for cell, error in failed]


def _curves(records: Sequence[Record], history: Dict[str, List[Record]], noise: Noise, grid: Grid, key: str) -> Panel:
    """One quantity at every evaluation, over tasks and seeds; no line for a method that was evaluated once.

    Args:
        records (sequence of Record): finished cells
        history (dict): cell -> the lines of its ``results.jsonl``
        noise (Noise), grid (Grid): the panel's noise, and its rows
        key (str): of the quantity
    """
    lines: Dict[str, List[Tuple[float, Stat]]] = {}
    for variant in grid.variants:
        values: Dict[int, List[float]] = {}
        for record in records:
            if (record["noise"], record["row"]) == (noise.label, variant.label):
                for line in history[record["cell"]]:
                    if line.get(key) is not None:
                        values.setdefault(line["step"], []).append(line[key])
        points = [(float(step), found) for step, some in sorted(values.items()) if (found := stat(some))]
        if len(points) > 1:
            lines[variant.label] = points
    return Panel(noise.label, "step", lines, *_CURVES.get(key, ()))


def noise_table(records: Sequence[Record], noise: Noise, metric: str, grid: Grid) -> Table:
    """Rows methods, columns tasks and their mean; the paper's OS in brackets."""
    mine = [record for record in records if record["noise"] == noise.label]
    rows = [variant.label for variant in grid.variants]
    tasks = [task.label for task in grid.tasks]
    title = f"{noise.label} ({noise.code})" if noise.code in paper_tables()["noise"] else noise.label
    table = make_table(mine, metric, rows, tasks, title=title)
    for variant in grid.variants:
        for column, names in [*((t, [t]) for t in tasks), (MEAN, tasks)]:
            number = published(grid.benchmark, noise.code, variant.settings["method"], names)
            publish(table, metric, variant.label, column, number)
    table.legend = legend(mine, metric, table)
    return table


def publish(table: Table, metric: str, row: str, column: str, number: Optional[float]) -> None:
    """Put a published number beside ours; the paper has OS only."""
    if metric == "os" and number is not None and column in table.columns:
        table.paper[row, column] = number


def legend(records: Sequence[Record], metric: str, table: Table) -> List[str]:
    """What the numbers are: metric, step, backbone, seeds, noise draw; what the bracketed ones are."""
    done = [record for record in records if "error" not in record]
    marked = "; best of each column marked" if len(table.rows) > 1 else ""
    lines = [f"{DEFINITIONS[metric]}; in %, mean ± standard deviation (ddof 1) over (n) seeds{marked}"]
    if done:
        words = {name: ", ".join(dict.fromkeys(str(record.get(name)) for record in done)) for name in _STATED}
        trained = dict.fromkeys(str(record["steps"]) for record in done if record.get("trained", True))
        steps = f"last step of {', '.join(trained)}, batch {words['batch_size']} per domain" if trained else "no training"
        # Of the runs, not of today: a grid may have been continued by a later version.
        found = dict.fromkeys(str(record["commit"]) for record in done if record.get("commit"))
        commits = [name[:10] + " with uncommitted changes" * name.endswith("-dirty") for name in found]
        code = f", commit {', '.join(commits)}" if commits else ""
        backbone = "frozen features" if words["arch"] == "None" else words["arch"]
        if words["arch"] == "None" or any(record.get("freeze_backbone") for record in done):
            # Records of earlier releases do not name the rate: it was 0.1.
            rates = ", ".join(dict.fromkeys(str(record.get("bottleneck_lr_mult", 0.1)) for record in done))
            backbone += " frozen" * (words["arch"] != "None")
            backbone += f", bottleneck trained at {rates} x the learning rate" * bool(trained)
        lines.append(
            f"{steps}; {backbone}; label sets {words['split']}; "
            f"seeds {words['seed']}, noise seeds {words['noise_seed']}; {date.today().isoformat()}{code}"
        )
    if table.paper:
        lines.append(f"published numbers: {paper_tables()['source']}; {paper_tables()['setting']}, single runs")
    missing = len(records) - len(done)
    return [*lines, f"{missing} of {len(records)} cells missing"] if missing else lines
