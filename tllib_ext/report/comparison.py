"""The files of a comparison: text, Markdown, LaTeX, CSV, JSON records, a figure and one self-contained page."""

from pathlib import Path
from typing import Dict, List, Optional, Sequence

from tllib_ext.io import atomic_path, write_json, write_text
from tllib_ext.report.table_formats import markdown_escape, to_csv, to_latex, to_markdown
from tllib_ext.report.tables import Table
from tllib_ext.report.templating import png_picture, render
from tllib_ext.typing import Record

__all__ = ["write_comparison"]


def write_comparison(
    folder: Path, name: str, title: str, tables: Sequence[Table], records: Sequence[Record], command: str,
    figures: Optional[Dict[str, bytes]] = None, notes: Sequence[str] = (),
) -> List[Path]:  # fmt: skip
    """Write ``name.{md,tex,csv,json,html}`` and a PNG per figure into ``folder``; returns their paths.

    Args:
        folder (Path): made if absent
        name (str): stem of the files
        title (str): heading of the page
        tables (sequence of Table): in order
        records (sequence of dict): the records of the runs in the tables
        command (str): the command that repeats the comparison
        figures (dict, optional): stem -> PNG bytes
        notes (sequence of str): e.g. cells that failed
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures or {}
    paths = [folder / f"{name}.{suffix}" for suffix in ("md", "tex", "csv", "json", "html")]
    write_text(paths[0], f"# {title}\n\n" + "\n".join(map(to_markdown, tables)) + _markdown_tail(figures, notes, command))
    write_text(paths[1], "\n".join(map(to_latex, tables)))
    write_text(paths[2], to_csv(tables))
    write_json(paths[3], {"command": command, "notes": list(notes), "records": list(records)})
    for stem, data in figures.items():
        paths.append(folder / f"{stem}.png")
        with atomic_path(paths[-1]) as draft:
            draft.write_bytes(data)
    pictures = {stem: png_picture(data) for stem, data in figures.items()}
    values = {"title": title, "tables": tables, "pictures": pictures, "notes": notes, "command": command}
    write_text(paths[4], render("comparison.html.j2", **values))
    return paths


def _markdown_tail(figures: Dict[str, bytes], notes: Sequence[str], command: str) -> str:
    pictures = "".join(f"\n![{stem}]({stem}.png)\n" for stem in figures)
    listed = "".join(f"\n- {markdown_escape(note)}" for note in notes)
    return f"{pictures}{listed}\n\n```\n{command}\n```\n"
