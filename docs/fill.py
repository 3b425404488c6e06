"""Fill in the generated tables of the documentation: hyper-parameters from the code, results from the stored records.

    python docs/fill.py            rewrite what is between the markers
    python docs/fill.py --check    exit 1 if a page is not up to date

A marker is ``<!-- hparams:NAME -->``, ``<!-- results:NAME -->``, ``<!-- runs:NAME -->`` (a table of ``run_tables.py``),
``<!-- overview -->`` or ``<!-- overview:short -->``; the generated text follows it and ends at ``<!-- end -->``.
"""

import argparse
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from run_tables import TABLES, by_learning_rate

from tllib_ext.experiments.paper import paper_tables, published
from tllib_ext.methods import METHODS
from tllib_ext.report.tables import MEAN, make_table

DOCS = Path(__file__).resolve().parent
#: rows of the short table in the README.
SHORT = ("source_only", "etn", "uan", "dance_sel", "coteaching", "divergence", "credo")
NOISES = {"pair 0.2": "P20", "symmetric 0.2": "S20", "symmetric 0.45": "S45", "pair 0.45": "P45"}
ORDER = ("source_only", "dann", "tcl", "etn", "sta", "uan", "dance", "dance_sel", "ovanet", "coteaching", "jocor", "divergence",
         "credo")  # fmt: skip
_BLOCK = re.compile(r"<!-- (hparams|results|runs|overview)(?::([\w:]+))? -->\n(?:.*?<!-- end -->\n)?", re.S)


def main() -> int:
    """Rewrite the pages, or with ``--check`` say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not up to date")
    check = parser.parse_args().check
    records = by_learning_rate()["0.1x"]
    stale = []
    named = [DOCS / f"{name}.md" for name in ("results", "target_model", "label_model")]
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
        body = results_table(name, records) if kind == "results" else overview(records, ORDER)
        if name == "short":
            body = overview(records, SHORT, mixture_row())
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
    """OS per task and noise of one method, with the means of source only and of the paper's method beside."""
    mine = [r for r in records if r["row"] == method]
    if not mine:
        return "\nNot among the stored records.\n\n"
    tasks = list(dict.fromkeys(r["task"] for r in mine))
    others = [name for name in ("source_only", "divergence") if name != method]
    lines = ["| noise | " + " | ".join([*tasks, "mean", *(f"`{name}`'s mean" for name in others)]) + " |"]
    lines.append("|---" * (len(tasks) + 2 + len(others)) + "|")
    for noise in NOISES:
        if any(r["noise"] == noise for r in mine):
            cells = [os_text(mine, method, noise, [task]) for task in tasks]
            means = [os_text(records, name, noise, tasks) for name in (method, *others)]
            lines.append(f"| {noise} | {' | '.join(cells + means)} |")
    return "\n" + "\n".join(lines) + "\n\n" + stated(mine, "../results.md")


def overview(records: Sequence[Dict[str, Any]], order: Sequence[str], more: Optional[Dict[str, List[str]]] = None) -> str:
    """Rows methods, columns kinds of noise: mean OS over all tasks; ``more`` maps further names to their cells."""
    tasks = list(dict.fromkeys(r["task"] for r in records))
    noises = [noise for noise in NOISES if any(r["noise"] == noise for r in records)]
    names = {"divergence": "`divergence` (the paper's)", "credo": "`credo` (ours, never told the rate)"}
    rows = [name for name in order if any(r["row"] == name for r in records)]
    cells = {names.get(row, f"`{row}`"): [os_text(records, row, noise, tasks) for noise in noises] for row in rows}
    cells.update(more or {})
    lines = ["| method | " + " | ".join(noises) + " |", "|---" * (len(noises) + 1) + "|"]
    best = [max((float(text.split()[0]) for text in column if text != "—"), default=None) for column in zip(*cells.values())]
    for name, row in cells.items():
        marked = [re.sub(r"^([^[]*\S)", r"**\1**", text) if text.split()[0] == str(top) else text for text, top in zip(row, best)]
        lines.append(f"| {name} | {' | '.join(marked)} |")
    return "\n" + "\n".join(lines) + "\n\n"


def mixture_row() -> Dict[str, List[str]]:
    """The measurements of ``mixture``, which are not among the records, from their page."""
    page = (DOCS / "target_model.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| ((?:pair|symmetric) [\d.]+) \| ([\d.]+ ± [\d.]+) \| [\d.]+ ± [\d.]+ \|$", page, re.M))
    return {"`mixture` (ours, no training)": [found[noise] for noise in NOISES]}


def _stat(records: Sequence[Dict[str, Any]], row: str, noise: str, tasks: Sequence[str]) -> Any:
    """One task's, or the mean's over seeds that have every task."""
    table = make_table([r for r in records if r["noise"] == noise], "os", [row], tasks, title="")
    return table.stats.get((row, MEAN if len(tasks) > 1 else tasks[0]))


def os_text(records: Sequence[Dict[str, Any]], row: str, noise: str, tasks: Sequence[str]) -> str:
    """``mean ± std [published]`` in percent."""
    found = _stat(records, row, noise, tasks)
    if found is None:
        return "—"
    spread = "" if found.std is None else f" ± {100 * found.std:.1f}"
    paper = published("office", NOISES[noise], row, tasks)
    return f"{100 * found.mean:.1f}{spread}" + ("" if paper is None else f" [{paper:.1f}]")


def stated(records: Sequence[Dict[str, Any]], results: str) -> str:
    """What the numbers are, under every table."""
    seeds = ", ".join(str(s) for s in sorted({r["seed"] for r in records}))
    steps = ", ".join(str(s) for s in sorted({r["steps"] for r in records}))
    return (
        f"OS in %, last of {steps} steps, mean ± standard deviation over seeds {seeds} (noise drawn with the same seed); "
        f"Office-31, frozen ImageNet ResNet-50 features, a bottleneck trained on them at 0.1 x the "
        f"learning rate of the heads. In brackets the paper's numbers, from a fine-tuned "
        f"ResNet-50 ({paper_tables()['source'].rpartition(', ')[2]}). [Commands and records]({results}).\n\n"
    )


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
