"""Tables: their arithmetic by hand, their escaping by hostile names."""

import csv
import io
import math
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tllib_ext.report.comparison import write_comparison
from tllib_ext.report.figures import Panel, bars_figure, density_figure, lines_figure, png_bytes
from tllib_ext.report.tables import (
    Stat,
    Table,
    latex_escape,
    make_table,
    stat,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_text,
)

NASTY = ['<script>alert("x")</script>', "a|b", "x_y & 50% $z^2$ \\cmd{#}~", "=cmd()", "**bold**", "na\nme"]


def records(values):
    return [{"row": r, "task": t, "seed": s, "os": v} for (r, t, s), v in values.items()]


def test_mean_and_spread_by_hand():
    found = stat([0.70, 0.80, 0.90])
    assert found.mean == pytest.approx(0.80) and found.std == pytest.approx(0.1) and found.n == 3  # ddof 1, not 0.0816
    assert stat([0.5]) == Stat(0.5, None, 1)
    assert stat([float("nan"), None]) is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_spread_is_the_samples(values):
    mean = math.fsum(values) / len(values)
    longhand = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    assert stat(values).std == pytest.approx(longhand, abs=1e-9)


def test_the_mean_column_averages_within_a_seed():
    values = {("a", "X", 0): 0.2, ("a", "X", 1): 0.8, ("a", "Y", 0): 0.8, ("a", "Y", 1): 0.2}
    table = make_table(records(values), "os", ["a"], ["X", "Y"], title="")
    assert table.stats["a", "X"].std == pytest.approx(0.4243, abs=1e-4)
    assert table.stats["a", "mean"] == Stat(0.5, 0.0, 2)  # both seeds have mean 0.5: their spread is none


def test_a_single_row_is_the_best_of_nothing():
    values = {("a", "X", 0): 0.5, ("b", "X", 0): 0.6}
    alone, both = (make_table(records(values), "os", rows, ["X"], title="") for rows in (["a"], ["a", "b"]))
    assert alone.best("X") == [] and "**" not in to_markdown(alone)
    assert both.best("X") == ["b"] and "**60.0" in to_markdown(both)


def test_missing_is_missing():
    values = {("a", "X", 0): 0.5, ("a", "X", 1): 0.6, ("a", "Y", 1): 0.7, ("b", "X", 0): 0.4}
    lost = [{"row": "b", "task": "Y", "seed": 0, "error": "died"}, {"row": "b", "task": "X", "seed": 1, "os": None}]
    table = make_table(records(values) + lost, "os", ["a", "b", "c"], ["X", "Y"], title="")
    assert table.stats["a", "mean"] == Stat(pytest.approx(0.65), None, 1)  # of the one seed that has both tasks
    texts = [[entry.text for entry in line] for line in table.entries()]
    assert texts[1] == ["b", "40.0 (1)", "—", "—"] and texts[2] == ["c", "—", "—", "—"]


def test_one_column_needs_no_mean():
    assert make_table(records({("a", "X", 0): 0.5}), "os", ["a"], ["X"], title="").columns == ["X"]


def test_best_by_what_is_printed_and_by_direction():
    stats = {("a", "X"): Stat(0.50001, None, 1), ("b", "X"): Stat(0.50002, None, 1), ("c", "X"): Stat(0.4, None, 1)}
    assert Table("", ["a", "b", "c", "d"], ["X"], stats).best("X") == ["a", "b"]
    assert Table("", ["a", "b", "c", "d"], ["X"], stats, low=True).best("X") == ["c"]
    assert Table("", ["a"], ["X"], {}).best("X") == []


def test_published_numbers_beside_and_apart():
    stats, paper = {("a", "X"): Stat(0.9, 0.01, 3)}, {("a", "X"): 91.22}
    assert Table("", ["a", "b"], ["X"], stats, paper).entries()[0][1].text == "90.0 ± 1.0 (3) [91.2]"
    apart = Table("", ["a", "b"], ["X", "Y"], stats, paper, apart=True)
    assert apart.header() == ["method", "X", "X paper", "difference", "Y"]
    assert [e.text for e in apart.entries()[0]] == ["a", "90.0 ± 1.0 (3)", "91.22", "-1.2", "—"]
    assert [e.text for e in apart.entries()[1]] == ["b", "—", "—", "—", "—"]


def nasty_table():
    stats = {(name, "X"): Stat(0.1 * i, 0.01, 2) for i, name in enumerate(NASTY)}
    return Table("T <b>", NASTY, ["X", "<i>"], stats, legend=["100 % & <more>"])


def test_html_holds_only_our_tags():
    class Reader(HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags, self.text = set(), []

        def handle_starttag(self, tag, attrs):
            self.tags.add(tag)

        def handle_data(self, data):
            self.text.append(data)

    reader = Reader()
    reader.feed(to_html(nasty_table()))
    assert reader.tags <= {"h2", "div", "table", "thead", "tbody", "tr", "th", "td", "b", "p", "br"}
    assert set(NASTY) <= set(reader.text)


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


def test_files_of_a_comparison(tmp_path):
    table = nasty_table()
    table.paper = {("a|b", "X"): 12.0}
    figure = png_bytes(bars_figure([table, table], "OS in %"))
    paths = write_comparison(tmp_path / "new", "comparison", "<title>", [table], [{"os": 1}], "run <this>", {"plot": figure},
                             ["<note>"])  # fmt: skip
    assert sorted(path.name for path in paths) == [f"comparison.{e}" for e in ("csv", "html", "json", "md", "tex")] + ["plot.png"]
    page = (tmp_path / "new" / "comparison.html").read_text()
    assert "data:image/png;base64," in page and "http" not in page.split("</style>")[1].split("base64")[0]
    for hostile in ("<script>", "<title></h1>", "run <this>", "<note>"):
        assert hostile not in page
    assert paths[-1].read_bytes()[:4] == b"\x89PNG"


def test_figures_survive_gaps():
    png_bytes(bars_figure([Table("t", ["a", "b"], ["X"], {})], "OS"))
    lines = {"divergence": [(0.0, Stat(0.5, 0.1, 2)), (0.2, Stat(0.4, None, 1))], "other $x": []}
    assert png_bytes(lines_figure([Panel("p", "x", lines)] * 3, "OS", columns=2))
    assert png_bytes(density_figure([("t", [0.1, 0.2, 0.3], [2.0, 3.0], 1.0), ("u", [0.1, 0.1], [], float("nan"))], "score"))
