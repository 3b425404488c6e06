"""Plots and page of a finished run, from its files."""

from pathlib import Path
from typing import Union

from tllib_ext.io import write_text
from tllib_ext.report.draw import draw
from tllib_ext.report.html import page
from tllib_ext.report.run_files import read_run
from tllib_ext.report.style import save

__all__ = ["write_report"]


def write_report(folder: Union[str, Path]) -> Path:
    """Draw ``plots/*.png`` and ``report.html`` from the files of a finished run; returns the page's path."""
    run = read_run(folder)
    plots = run.folder / "plots"
    plots.mkdir(exist_ok=True)
    files = {}
    for name, figure in draw(run).items():
        files[name] = plots / f"{name}.png"
        save(figure, files[name])
    write_text(run.folder / "report.html", page(run, files))
    return run.folder / "report.html"
