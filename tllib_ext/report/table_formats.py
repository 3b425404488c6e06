"""A :class:`~tllib_ext.report.tables.Table` as text, Markdown, LaTeX and CSV; names are escaped in each."""

import csv
import io
import re
from typing import Callable, List, Optional, Sequence

from tllib_ext.io import escape_formula
from tllib_ext.report.tables import Table

__all__ = ["latex_escape", "markdown_escape", "to_csv", "to_latex", "to_markdown", "to_text"]


def to_text(table: Table) -> str:
    """For a terminal: prettytable, the best marked with a star."""
    from prettytable import PrettyTable

    # prettytable needs distinct names: zero-width spaces make them so, and are removed from the text.
    made = PrettyTable([name + "\u200b" * i for i, name in enumerate(table.header())], align="r")
    made.align[made.field_names[0]] = "l"
    made.add_rows(_cells(table, str, "*{}"))
    return "\n".join([table.title, made.get_string().replace("\u200b", ""), *table.legend])


def _cells(table: Table, escape: Callable[[str], str], bold: str) -> List[List[str]]:
    """The escaped texts of the entries, the best ones in the form ``bold``."""
    return [[bold.format(escape(e.text)) if e.bold else escape(e.text) for e in line] for line in table.entries()]


def to_markdown(table: Table) -> str:
    """A GitHub table."""
    header = [markdown_escape(name) for name in table.header()]
    rows = [header, [":--", *["--:"] * (len(header) - 1)], *_cells(table, markdown_escape, "**{}**")]
    lines = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    legend = "".join(f"\n{markdown_escape(line)}  " for line in table.legend)
    return f"### {markdown_escape(table.title)}\n\n{lines}{legend}\n"


def markdown_escape(text: str) -> str:
    """Plain text for a cell of a Markdown table."""
    text = re.sub(r"([\\`*|\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("<", "&lt;").replace(">", "&gt;")


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
          ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "—": "---", "…": r"\ldots{}",
          **{char: "\\" + char for char in "&%$#_{}"}}  # fmt: skip


def latex_escape(text: str) -> str:
    r"""Plain text for LaTeX.

    Examples::

        >>> print(latex_escape(r"dance_sel 50% \x"))
        dance\_sel 50\% \textbackslash{}x
    """
    return "".join(_LATEX.get(char, char) for char in " ".join(text.split()))


def to_latex(table: Table) -> str:
    """A ``tabular`` in a ``table`` (booktabs), caption title and metric; how it was measured is a comment."""
    lines = [r"\begin{table}", r"\centering", r"\begin{tabular}{l" + "r" * (len(table.header()) - 1) + "}", r"\toprule"]
    lines += [" & ".join(map(latex_escape, table.header())) + r" \\", r"\midrule"]
    lines += [" & ".join(cells) + r" \\" for cells in _cells(table, latex_escape, r"\textbf{{{}}}")]
    caption = ". ".join(latex_escape(line).rstrip(".") for line in [table.title, *table.legend[:1]])
    how = [f"% {' '.join(line.split())}" for line in table.legend[1:]]
    return "\n".join([*how, *lines, r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}.}}", r"\end{table}"]) + "\n"


def to_csv(tables: Sequence[Table]) -> str:
    """All tables in one long list, a line per number, in percent: table, row, column, mean, std, n, paper, difference."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "row", "column", "mean", "std", "n", "paper", "difference"])
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                found, paper = table.stats.get((row, column)), table.paper.get((row, column))
                mean, std, n = ("", "", 0) if found is None else (_percent(found.mean), _percent(found.std), found.n)
                gap = "" if found is None or paper is None else f"{100 * found.mean - paper:.4f}"
                names = map(escape_formula, (table.title, row, column))
                writer.writerow([*names, mean, std, n, "" if paper is None else paper, gap])
    return buffer.getvalue()


def _percent(value: Optional[float]) -> str:
    return "" if value is None else f"{100 * value:.4f}"
