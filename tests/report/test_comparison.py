"""The files, the page and the plots of a comparison."""

from html.parser import HTMLParser

from test_table_formats import NASTY, nasty_table

from tllib_ext.report.comparison import write_comparison
from tllib_ext.report.comparison_plots import Panel, bars_figure, lines_figure
from tllib_ext.report.style import png_bytes
from tllib_ext.report.tables import Stat, Table


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.text.append(data.strip())


def test_files_of_a_comparison(tmp_path):
    table = nasty_table()
    table.paper = {("a|b", "X"): 12.0}
    figure = png_bytes(bars_figure([table, table], "OS in %"))
    paths = write_comparison(tmp_path / "new", "comparison", "<title>", [table], [{"os": 1}], "run <this>", {"plot": figure},
                             ["<note>"])  # fmt: skip
    assert sorted(path.name for path in paths) == [f"comparison.{e}" for e in ("csv", "html", "json", "md", "tex")] + ["plot.png"]
    assert paths[-1].read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "new" / "comparison.html").read_text()
    assert "data:image/png;base64," in page and "http:" not in page and "https:" not in page
    read = Reader(page)
    allowed = "html head meta title style body main header h1 h2 section figure img div table thead tbody tr th td b p ul li pre"
    assert read.tags <= {*allowed.split(), "br"}
    assert {name.replace("\n", "\\n") for name in NASTY} | {"<title>", "run <this>", "<note>", "T <b>"} <= set(read.text)
    assert "100 % & <more>" in read.text and "50.0 ± 1.0 (2)" in read.text


def test_figures_survive_gaps():
    png_bytes(bars_figure([Table("t", ["a", "b"], ["X"], {})], "OS"))
    lines = {"divergence": [(0.0, Stat(0.5, 0.1, 2)), (0.2, Stat(0.4, None, 1))], "other $x": []}
    assert png_bytes(lines_figure([Panel("p", "x", lines)] * 3, "OS", columns=2))
    percent, plain = lines_figure([Panel("p", "x", lines), Panel("p", "x", lines, "loss", 1.0)], "OS").axes
    assert (percent.get_ylabel(), plain.get_ylabel()) == ("OS", "loss")
    assert [100 * y for y in plain.lines[0].get_ydata()] == list(percent.lines[0].get_ydata())
