"""Fill in the generated tables of the documentation: hyper-parameters from the code, results from the stored records.

    python docs/fill.py            rewrite what is between the markers
    python docs/fill.py --check    exit 1 if a page is not up to date

A marker is ``<!-- hparams:NAME -->``, ``<!-- results:NAME -->``, ``<!-- runs:NAME -->`` (a table of ``run_tables.py`` or
``method_tables.py``), ``<!-- overview -->``, ``<!-- overview:h_score -->`` or ``<!-- overview:short -->``; the generated text
follows it and ends at ``<!-- end -->``.
"""

import argparse
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import method_tables
import run_tables
from run_tables import METHODS as COMPARED
from run_tables import load

from tllib_ext.experiments.paper import paper_tables, published
from tllib_ext.methods import METHODS
from tllib_ext.report.tables import MEAN, MISSING, make_table

DOCS = Path(__file__).resolve().parent
#: rows of the short table in the README.
SHORT = ("source_only", "tcl", "dance_sel", "uniot", "dividemix", "divergence", "credo", "mixture")
NOISES = {"clean": "clean", "pair 0.2": "P20", "symmetric 0.2": "S20", "symmetric 0.45": "S45", "pair 0.45": "P45"}
TABLES = {**run_tables.TABLES, **method_tables.TABLES}
ORDER = (*COMPARED, "credo", "mixture")
#: H-score in %, clean labels, mean of the six tasks, fine-tuned ResNet-50: uniood's reproductions (docs/results.md).
REPRODUCED = {"source_only": 66.3, "dance": 80.3, "ovanet": 83.3, "uniot": 84.4}
NAMES = {"divergence": "`divergence` (the paper's)", "credo": "`credo` (ours)", "mixture": "`mixture` (ours, no training)"}
_BLOCK = re.compile(r"<!-- (hparams|results|runs|overview)(?::([\w:]+))? -->\n(?:.*?<!-- end -->\n)?", re.S)


def main() -> int:
    """Rewrite the pages, or with ``--check`` say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not up to date")
    check = parser.parse_args().check
    records = load("all_methods/records.json")
    stale = []
    named = [DOCS / f"{name}.md" for name in ("results", "target_model", "label_model", "evaluation")]
    pages = [DOCS.parent / "README.md", *named, *sorted((DOCS / "methods").glob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        new = _BLOCK.sub(lambda block: filled(block.group(1), block.group(2), records), text)
        if new != text:
            stale.append(page)
            if not check:
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"{page.relative_to(DOCS.parent)} {'is not up to date: python docs/fill.py' if check else 'written'}")
    return 1 if check and stale else 0


def filled(kind: str, name: Optional[str], records: Sequence[Dict[str, Any]]) -> str:
    """A marker with what belongs under it."""
    if kind == "hparams":
        body = hparams_table(name)
    elif kind == "runs":
        body = f"\n{TABLES[name]()}\n\n"
    else:
        short = name == "short"
        body = results_table(name, records) if kind == "results" else overview(records, SHORT if short else ORDER, name)
    return f"<!-- {kind}{':' + name if name else ''} -->\n{body}<!-- end -->\n"


def hparams_table(method: str) -> str:
    """Name, default, meaning and source of every hyper-parameter, and what each preset changes."""
    cls = METHODS.get(method)
    if not dataclasses.fields(cls.Hparams):
        return "\nNo hyper-parameters.\n\n"
    lines = ["| name | default | what it does | from |", "|---|---|---|---|"]
    for f in dataclasses.fields(cls.Hparams):
        lines.append(f"| `{f.name}` | `{f.default}` | {_cell(f.metadata['help'])} | {_cell(f.metadata['source'])} |")
    for preset, changes in cls.presets.items():
        if changes:
            listed = ", ".join(f"`{name}={value}`" for name, value in changes.items())
            lines += ["", f"`--preset {preset}`: {listed}."]
    return "\n" + "\n".join(lines) + "\n\n"


def results_table(method: str, records: Sequence[Dict[str, Any]]) -> str:
    """OS per task and noise of one method, its mean H-score, and the mean OS of source only and of the paper's method."""
    mine = [r for r in records if r["row"] == method]
    if not mine:
        return "\nNot among the stored records.\n\n"
    tasks = list(dict.fromkeys(r["task"] for r in mine))
    others = [name for name in ("source_only", "divergence") if name != method]
    lines = ["| noise | " + " | ".join([*tasks, "mean", "mean H-score", *(f"`{name}`'s mean" for name in others)]) + " |"]
    lines.append("|---" * (len(tasks) + 3 + len(others)) + "|")
    for noise in NOISES:
        if any(r["noise"] == noise for r in mine):
            cells = [percent(mine, method, noise, [task]) for task in tasks]
            means = [percent(mine, method, noise, tasks), percent(mine, method, noise, tasks, "h_score")]
            means += [percent(records, name, noise, tasks) for name in others]
            lines.append(f"| {noise} | {' | '.join(cells + means)} |")
    return "\n" + "\n".join(lines) + "\n\n" + stated(mine, "../results.md")


def overview(records: Sequence[Dict[str, Any]], order: Sequence[str], kind: Optional[str]) -> str:
    """Rows methods, columns kinds of noise: mean over all tasks of OS, or of the H-score (``kind`` h_score); what was told.

    ``short``: OS, and the H-score averaged over the noises and clean labels.
    """
    tasks, noises = list(dict.fromkeys(r["task"] for r in records)), list(NOISES)
    told = {r["row"]: r["told"] or MISSING for r in records}
    order = [row for row in order if row in told]
    metric = "h_score" if kind == "h_score" else "os"
    cells = {row: [percent(records, row, noise, tasks, metric) for noise in noises] for row in order}
    head = ["method", *noises, "told"]
    if kind == "short":
        head.insert(-1, "H-score, mean")
        for row, columns in cells.items():
            found = [_stat(records, row, noise, tasks, "h_score") for noise in noises]
            columns.append(f"{100 * sum(value.mean for value in found) / len(found):.1f}" if all(found) else MISSING)
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    best = [max((float(cell.split()[0]) for cell in column if cell != MISSING), default=None) for column in zip(*cells.values())]
    for name, row in cells.items():
        marked = [re.sub(r"^([^[]*\S)", r"**\1**", cell) if cell.split()[0] == str(top) else cell for cell, top in zip(row, best)]
        lines.append(f"| {NAMES.get(name, f'`{name}`')} | {' | '.join([*marked, told[name]])} |")
    return "\n" + "\n".join(lines) + "\n\n"


def _stat(records: Sequence[Dict[str, Any]], row: str, noise: str, tasks: Sequence[str], metric: str = "os") -> Any:
    """One task's, or the mean's over seeds that have every task."""
    table = make_table([r for r in records if r["noise"] == noise], metric, [row], tasks, title="")
    return table.stats.get((row, MEAN if len(tasks) > 1 else tasks[0]))


def percent(records: Sequence[Dict[str, Any]], row: str, noise: str, tasks: Sequence[str], metric: str = "os") -> str:
    """``mean ± std [published]`` in percent; only OS is published."""
    found = _stat(records, row, noise, tasks, metric)
    if found is None:
        return MISSING
    spread = "" if found.std is None else f"\u00a0±\u00a0{100 * found.std:.1f}"
    paper = published("office", NOISES[noise], row, tasks) if metric == "os" else None
    if metric == "h_score" and noise == "clean" and len(tasks) == 6:
        paper = REPRODUCED.get(row)
    return f"{100 * found.mean:.1f}{spread}" + ("" if paper is None else f" [{paper:.1f}]")


def stated(records: Sequence[Dict[str, Any]], results: str) -> str:
    """What the numbers are, under every table."""
    seeds = ", ".join(str(s) for s in sorted({r["seed"] for r in records}))
    steps = max(r["steps"] for r in records)
    trained = f"a bottleneck trained on them for {steps} steps at 0.1 x the learning rate of the heads, last step"
    return (
        f"OS in %, mean ± standard deviation over seeds {seeds} (noise drawn with the same seed); Office-31, frozen ImageNet "
        f"ResNet-50 features, {trained if steps > 1 else 'no training'}. In brackets the paper's numbers, from a fine-tuned "
        f"ResNet-50 ({paper_tables()['source'].rpartition(', ')[2]}). [Commands and records]({results}).\n\n"
    )


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
