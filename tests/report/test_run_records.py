"""Edited files of a run folder: one line that names the file and the key, whatever stands there."""

import json
import math
import shutil

import pytest
from made_run import make_run

from tllib_ext.cli.select import select
from tllib_ext.errors import UserError
from tllib_ext.report.run_files import read_run

LONG = 10**400


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    make_run(folder)
    model = {
        "called_unknown": 0.5,
        "warnings": [],
        "decides": True,
        "share": 0.5,
        "share_interval": [0.4, 0.6],
        "groups": [0] * 60,
    }
    (folder / "target_model.json").write_text(json.dumps(model))
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def change(file, key, value):
    record = json.loads(file.read_text())
    record.pop(key, None)
    file.write_text(json.dumps(record if value is KeyError else {**record, key: value}))


@pytest.mark.parametrize("name, key, value", [
    *(("label_model.json", "transition", value) for value in ([[1], [1, 2]], [], "text", [["a"] * 5] * 5, [[math.nan] * 5] * 5)),
    ("label_model.json", "rate", "text"), ("label_model.json", "rate", LONG), ("label_model.json", "rate_text", ["<b>"]),
    *(("target_model.json", "groups", value) for value in ([None] * 60, ["a"] * 60, [[1]] * 60, [LONG] * 60, "text")),
    ("target_model.json", "decides", KeyError), ("target_model.json", "called_unknown", [0.5]),
    ("target_model.json", "warnings", "text"), ("target_model.json", "share_interval", LONG),
    ("target_model.json", "share", None),
    ("results.json", "realised_rate", LONG), ("results.json", "suspects_auroc", "text"),
    ("results.json", "realised_transition", []),
    ("config.json", "command", 3), ("config.json", "hparams", "text"), ("config.json", "root", 1), ("env.json", "versions", [1]),
    ("env.json", "directory", 5)])  # fmt: skip
def test_an_edited_value_is_one_line(folder, name, key, value):
    read_run(folder)
    change(folder / name, key, value)
    with pytest.raises(UserError) as error:
        read_run(folder)
    assert f"{folder / name}" in str(error.value) and key in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    "line", ['{"step": 1, "os": 1%s}' % ("0" * 400), '{"step": 1%s}' % ("0" * 400), '{"step": 2, "os": "x"}']
)
def test_an_edited_evaluation_is_one_line(folder, line):
    (folder / "results.jsonl").write_text(line + "\n")
    for read in (lambda: read_run(folder), lambda: select([folder])):
        with pytest.raises(UserError, match="results.jsonl, step"):
            read()


def test_select_asks_for_a_metric_that_is_a_number(folder):
    lines = [{"step": 1, "val_entropy": 0.1, "os": 0.5, "scenario": "open"}]
    (folder / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert select([folder])["runs"][0]["os"] == 0.5
    with pytest.raises(UserError, match="scenario is 'open', expected a finite number"):
        select([folder], "scenario")
    lines[0]["val_entropy"] = math.inf
    (folder / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError, match="val_entropy is inf"):
        select([folder])
