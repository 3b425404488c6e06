"""The tables of docs/answers.md are those of the records, and the records say how they were made."""

import json

import answers_table
import numpy as np
from conftest import ROOT

from tllib_ext.io import BEGIN, END

FILES = [ROOT / "records" / f"answers_{name}.jsonl" for name in ("scenarios", "methods")]


def test_the_page_has_the_tables_of_the_records():
    text = (ROOT / "docs" / "answers.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert text == answers_table.tables(*map(answers_table.read, FILES)), "python tools/answers_table.py tables records --out …"


def test_the_first_line_is_command_commit_and_date():
    for file in FILES:
        head = json.loads(file.read_text().splitlines()[0])
        assert head["command"].startswith("python tools/answers_table.py ") and head["commit"] and head["date"].endswith("UTC")


def test_means_are_over_tasks_and_then_over_seeds():
    records = [{"method": "m", "group": "g", "noise": "clean", "seed": seed, "answers": 5, "os": os, "h_score": h}
               for seed, os, h in ((0, 0.5, None), (0, 0.7, 0.4), (1, 0.9, 0.8))]  # fmt: skip
    (values,) = answers_table.group_means(records).values()
    assert np.allclose(values, [[60, 90], [40, 80]])
    assert "75.0 ± 21.2 / 60.0 ± 28.3  (2 seeds)" in answers_table.summary(records)
