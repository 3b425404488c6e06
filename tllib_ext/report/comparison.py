"""The files of a comparison: text, Markdown, LaTeX, CSV, JSON records, a figure and one self-contained page."""

import base64
import html
import io
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tllib_ext.files import whole_file, write_json, write_text
from tllib_ext.report.tables import MEAN, Table, to_csv, to_html, to_latex, to_markdown

__all__ = ["write_comparison", "bars_figure", "png_bytes"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
.scroll { overflow-x: auto } img { max-width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd }
tbody th, thead th:first-child { text-align: left; font-weight: 600 } thead th { border-bottom: 2px solid #222 }
td b { color: #0b5394 } .legend, li { color: #555; font-size: .85rem } pre { white-space: pre-wrap; overflow-wrap: anywhere }
"""


def write_comparison(
    folder: Path, name: str, title: str, tables: Sequence[Table], records: Sequence[Dict[str, Any]], command: str,
    figures: Optional[Dict[str, bytes]] = None, notes: Sequence[str] = (),
) -> List[Path]:  # fmt: skip
    """Write ``name.{md,tex,csv,json,html}`` and a PNG per figure into ``folder``; returns their paths.

    Args:
        folder (Path): made if absent
        name (str): stem of the files
        title (str): heading of the page
        tables (sequence of Table): in order
        records (sequence of dict): what the tables were made of
        command (str): what repeats them
        figures (dict, optional): stem -> PNG bytes
        notes (sequence of str): e.g. cells that failed
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures or {}
    paths = [folder / f"{name}.{suffix}" for suffix in ("md", "tex", "csv", "json", "html")]
    write_text(paths[0], f"# {title}\n\n" + "\n".join(map(to_markdown, tables)) + _md_tail(figures, notes, command))
    write_text(paths[1], "\n".join(map(to_latex, tables)))
    write_text(paths[2], to_csv(tables))
    write_json(paths[3], {"command": command, "notes": list(notes), "records": list(records)})
    for stem, data in figures.items():
        paths.append(folder / f"{stem}.png")
        with whole_file(paths[-1]) as draft:
            draft.write_bytes(data)
    write_text(paths[4], _page(title, tables, figures, notes, command))
    return paths


def _md_tail(figures: Dict[str, bytes], notes: Sequence[str], command: str) -> str:
    pictures = "".join(f"\n![{stem}]({stem}.png)\n" for stem in figures)
    listed = "".join(f"\n- {html.escape(note, quote=False)}" for note in notes)
    return f"{pictures}{listed}\n\n```\n{command}\n```\n"


def _page(title: str, tables: Sequence[Table], figures: Dict[str, bytes], notes: Sequence[str], command: str) -> str:
    pictures = "".join(
        f'<p><img alt="{html.escape(stem)}" src="data:image/png;base64,{base64.b64encode(data).decode()}"></p>\n'
        for stem, data in figures.items()
    )
    listed = "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes) + "</ul>\n" if notes else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        f"{pictures}{''.join(map(to_html, tables))}{listed}<h2>Command</h2><pre>{html.escape(command)}</pre>\n</body></html>\n"
    )


def png_bytes(figure: Any) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140, bbox_inches="tight")
    return buffer.getvalue()


def plain(text: str) -> str:
    """Text that matplotlib must not read as mathematics."""
    return text.replace("$", r"\$")


def bars_figure(tables: Sequence[Table], axis: str) -> Any:
    """A panel per table: one bar per row (the mean column, or the only one), dots for the tasks, diamonds for the paper.

    Args:
        tables (sequence of Table): same rows in each
        axis (str): label of the horizontal axis
    """
    from matplotlib.figure import Figure

    rows = tables[0].rows
    figure = Figure(figsize=(max(5.0, 4.2 * len(tables)), 1.4 + 0.36 * len(rows)))
    for number, (panel, table) in enumerate(zip(figure.subplots(1, len(tables), squeeze=False)[0], tables)):
        column = MEAN if MEAN in table.columns else table.columns[-1]
        tasks = [name for name in table.columns if name != column]
        for y, row in enumerate(rows):
            found = table.stats.get((row, column))
            if found is not None:
                best = row in table.best(column)
                panel.barh(y, 100 * found.mean, 0.7, xerr=None if found.std is None else 100 * found.std,
                           color="#0b5394" if best else "#9fc5e8", error_kw={"lw": 1, "capsize": 2}, zorder=2)  # fmt: skip
            else:
                panel.text(1, y, "missing", va="center", color="#999999", fontsize=8)
        for index, task in enumerate(tasks):
            points = [(100 * table.stats[row, task].mean, y) for y, row in enumerate(rows) if (row, task) in table.stats]
            if points:
                panel.scatter(*zip(*points), s=10, color=f"C{index + 1}", label=plain(task), zorder=3)
        points = [(table.paper[row, column], y) for y, row in enumerate(rows) if (row, column) in table.paper]
        if points:
            panel.scatter(*zip(*points), s=34, marker="D", facecolors="none", edgecolors="black", label="paper", zorder=4)
        panel.set(xlim=(0, 100), yticks=range(len(rows)), xlabel=plain(axis), title=plain(table.title))
        panel.set_yticklabels(map(plain, rows) if number == 0 else [])
        panel.invert_yaxis()
        panel.grid(axis="x", alpha=0.3, zorder=0)
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="lower center", ncols=min(8, len(labels)), bbox_to_anchor=(0.5, -0.06), frameon=False)
    figure.tight_layout()
    return figure
