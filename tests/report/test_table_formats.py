"""Tables as text, Markdown, LaTeX and CSV: hostile names stay text."""

import csv
import io

from tllib_ext.report.table_formats import latex_escape, to_csv, to_latex, to_markdown, to_text
from tllib_ext.report.tables import Stat, Table

NASTY = ['<script>alert("x")</script>', "a|b", "x_y & 50% $z^2$ \\cmd{#}~", "=cmd()", "**bold**", "na\nme"]


def nasty_table():
    stats = {(name, "X"): Stat(0.1 * i, 0.01, 2) for i, name in enumerate(NASTY)}
    return Table("T <b>", NASTY, ["X", "<i>"], stats, legend=["100 % & <more>"])


def test_latex_escapes_and_marks():
    assert latex_escape("x_y & 50% $z^2$ \\c{#}~ ± —") == (
        r"x\_y \& 50\% \$z\textasciicircum{}2\$ \textbackslash{}c\{\#\}\textasciitilde{} $\pm$ ---"
    )
    text = to_latex(nasty_table())
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(NASTY)
    assert all(line.replace(r"\&", "").count("&") == 2 for line in lines)
    assert text.count(r"\textbf{") == 1 and r"\textbf{50.0 $\pm$ 1.0 (2)}" in text


def test_markdown_keeps_its_columns():
    rows = [line for line in to_markdown(nasty_table()).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(NASTY)
    assert all(row.replace("\\|", "").count("|") == 4 for row in rows)
    assert "<script>" not in "".join(rows) and r"\*\*bold" in "".join(rows) and "**50.0 ± 1.0 (2)**" in "".join(rows)


def test_csv_reads_back_and_runs_nothing():
    lines = list(csv.DictReader(io.StringIO(to_csv([nasty_table()]))))
    assert len(lines) == 2 * len(NASTY) and not any(line["row"].startswith("=") for line in lines)
    by_name = {(line["row"], line["column"]): line for line in lines}
    assert by_name["a|b", "X"]["mean"] == "10.0000" and by_name["a|b", "X"]["std"] == "1.0000"
    assert by_name["a|b", "<i>"]["mean"] == "" and by_name["a|b", "<i>"]["n"] == "0"


def test_text_marks_the_best_and_says_what_it_is():
    stats = {("a", "X"): Stat(0.5, None, 1), ("b", "X"): Stat(0.6, None, 1)}
    text = to_text(Table("title", ["a", "b"], ["X"], stats, legend=["note"]))
    assert "*60.0 (1)" in text and "*50.0" not in text and text.startswith("title") and text.endswith("note")
    apart = Table("", ["a"], ["X", "Y"], {}, {("a", "X"): 1.0, ("a", "Y"): 2.0}, apart=True)
    assert to_text(apart).count("difference") == 2
