"""The arithmetic of tables, checked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tllib_ext.report.table_formats import to_markdown
from tllib_ext.report.tables import Stat, Table, make_table, stat


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


def test_what_a_method_was_told_is_the_last_column():
    runs = [{"row": row, "task": "A2D", "seed": 0, "os": 0.5, "told": told} for row, told in (("a", "noise rate"), ("b", ""))]
    table = make_table(runs, "os", ["a", "b"], ["A2D"], title="")
    assert table.header()[-1] == "told" and [line[-1].text for line in table.entries()] == ["noise rate", "—"]
    old = make_table([{**run, "told": None} for run in runs], "os", ["a", "b"], ["A2D"], title="")
    assert old.header() == ["method", "A2D"]
