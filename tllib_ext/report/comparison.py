"""The files of a comparison: text, Markdown, LaTeX, CSV, JSON records, a figure and one self-contained page."""

import base64
import html
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tllib_ext.io import atomic_path, write_json, write_text
from tllib_ext.report.tables import Table, to_csv, to_html, to_latex, to_markdown

__all__ = ["write_comparison"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 90rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
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
        with atomic_path(paths[-1]) as draft:
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
