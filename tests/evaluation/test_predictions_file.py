"""predictions.csv: what is written reads back exactly, and a bad file is one clear line."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.errors import UserError
from tllib_ext.evaluation import OpenSetEvaluator, read_predictions, write_predictions
from tllib_ext.evaluation.__main__ import main
from tllib_ext.evaluation.files import COLUMNS
from tllib_ext.io import CHUNK, atomic_text, escape_formula, unescape_formula
from tllib_ext.methods.base import Prediction
from tllib_ext.split import LabelSplit

SPLIT = LabelSplit(["ant", "bee"], ["cow", "dog"], ["eel", "fox"])
HEADER = "index,label,predicted,score,top1\n"
GOOD = HEADER + "0,ant,ant,0.1,ant\n1,bee,unknown,0.6,bee\n2,unknown,unknown,0.9,cow\n"


def random_case(split=SPLIT, n=60, seed=0):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(split.num_source), n).astype(np.float32)
    score = rng.normal(size=n).astype(np.float32)
    labels = rng.choice([*split.shared_labels, split.unknown], n)
    return Prediction(probs, score, score > 0.3), labels, rng.permutation(n)


def cells(file):
    with open(file, newline="", encoding="utf-8", errors="surrogateescape") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def folder(tmp_path):
    """A run folder: predictions.csv and the config.json beside it."""
    (tmp_path / "config.json").write_text(json.dumps({"method": "divergence", "split": SPLIT.to_dict()}))
    (tmp_path / "predictions.csv").write_text(GOOD)
    return tmp_path


# --- writing and reading ---


def test_what_is_written_reads_back_bit_for_bit(tmp_path):
    answer, labels, index = random_case()
    file = tmp_path / "predictions.csv"
    write_predictions(file, answer, index, [f"target/{i}.jpg" for i in index], SPLIT, 0.3, labels)
    read = read_predictions(file, SPLIT)
    order = np.argsort(index)
    assert read.index.tolist() == list(range(60))
    assert read.path == [f"target/{i}.jpg" for i in range(60)]
    assert (read.label == labels[order]).all() and read.labelled.all()
    assert (read.score == answer.score[order].astype(float)).all()
    assert (read.threshold == 0.3).all()
    assert (read.top == np.argsort(-answer.probs[order], 1)[:, :3]).all()
    assert (read.top_probs == -np.sort(-answer.probs[order], 1)[:, :3]).all()
    evaluator = OpenSetEvaluator(SPLIT)
    evaluator.update(answer, labels, index)
    assert read.evaluate(SPLIT) == evaluator.compute()
    assert read.evaluate(SPLIT, threshold=0.3) == evaluator.compute()
    assert read_predictions(file, SPLIT, only_metrics=True).evaluate(SPLIT) == evaluator.compute()
    assert list(cells(file)[0]) == list(COLUMNS)


def test_two_classes_unlabelled_without_threshold_and_infinite_scores(tmp_path):
    split, file = LabelSplit(["ant", "bee"], [], ["eel"]), tmp_path / "p.csv"
    answer = Prediction(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([-np.inf, np.inf]), np.array([False, True]))
    write_predictions(file, answer, [1, 0], ["b", "a"], split)
    rows = cells(file)
    assert [row["predicted"] for row in rows] == ["unknown", "ant"]
    assert all(row[name] == "" for row in rows for name in ("label", "threshold", "top3", "p3"))
    read = read_predictions(file, split)
    assert read.score.tolist() == [np.inf, -np.inf] and np.isnan(read.threshold).all()
    assert read.top.tolist() == [[1, 0], [0, 1]]  # of equal probabilities the first class, as argmax
    assert not read.labelled.any()
    with pytest.raises(UserError, match="no row has a label"):
        read.evaluate(split)


def test_top1_is_the_argmax_of_equal_probabilities_too(tmp_path):
    split, file = LabelSplit([f"class{i}" for i in range(40)]), tmp_path / "p.csv"
    probs = np.random.default_rng(0).integers(0, 3, (50, 40)) / 64
    write_predictions(file, Prediction(probs, np.zeros(50), np.zeros(50, bool)), range(50), [""] * 50, split)
    assert (read_predictions(file, split).top[:, 0] == probs.argmax(1)).all()


nasty = st.text(st.sampled_from("=+-@\t\r\n'\",;ab\u00e9\udcff "), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(st.lists(nasty, min_size=4, max_size=4, unique=True))
def test_any_class_and_file_name_survives_and_no_cell_is_a_formula(tmp_path_factory, names):
    file = tmp_path_factory.mktemp("names") / "p.csv"
    split = LabelSplit(names[:2], names[2:3], names[3:])
    probs = np.eye(3)
    write_predictions(file, Prediction(probs, np.zeros(3), np.zeros(3, bool)), range(3), names[:3], split, labels=[0, 1, 3])
    for row in cells(file):
        assert not any(row[name][:1] in set("=+-@\t\r\n") for name in ("path", "label", "predicted", "top1") if row[name])
    read = read_predictions(file, split)
    assert read.path == names[:3]
    assert (read.label.tolist(), read.predicted.tolist()) == ([0, 1, 3], [0, 1, 2])


@given(st.text())
def test_the_guard_can_be_undone(text):
    assert unescape_formula(escape_formula(text)) == text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    answer, labels, index = random_case()
    file = tmp_path / "p.csv"
    file.write_text("old")

    with pytest.raises(UserError, match="index 0 stands twice"):
        write_predictions(file, answer, np.zeros(60, int), [""] * 60, SPLIT, labels=labels)
    with pytest.raises(UserError, match="as many of each"):
        write_predictions(file, answer, index, ["too", "few"], SPLIT)
    with pytest.raises(UserError, match="called 'unknown'"):
        write_predictions(file, answer, index, [""] * 60, LabelSplit(["unknown", "b", "c", "d"]))
    with pytest.raises(RuntimeError), atomic_text(file) as stream:
        stream.write("half")
        raise RuntimeError
    assert os.listdir(tmp_path) == ["p.csv"] and file.read_text() == "old"


def test_files_of_other_programs(tmp_path):
    """Other column order, more columns, a byte-order mark, target-private names as labels, blank lines."""
    file = tmp_path / "other.csv"
    text = "score,note,top1,predicted,label,index\n0.9,x,cow,unknown,eel,12\n\n0.1,,ant,ant,ant,3\n"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    read = read_predictions(file, SPLIT)
    assert (read.index.tolist(), read.path, read.top.tolist()) == ([12, 3], ["", ""], [[2], [0]])
    assert read.evaluate(SPLIT).os == 1


# --- the command ---


def test_command_prints_every_metric_and_writes_json(folder, capsys):
    out = folder / "metrics.json"
    assert main([str(folder / "predictions.csv"), "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "h_score" in text and "0.6667" in text and "3 rows, as predicted" in text
    metrics = json.loads(out.read_text())
    assert (metrics["os_star"], metrics["unk"], metrics["closed_accuracy"]) == (0.5, 1.0, 1.0)
    assert metrics["per_class"]["bee"] == {"recall": 0.0, "count": 1}
    assert metrics["confusion"][1][4] == 1 and metrics["label_names"][4] == "unknown"


def test_command_decides_anew(folder, capsys):
    out = folder / "metrics.json"
    assert main([str(folder / "predictions.csv"), "--threshold", "0.6", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["os"] == 1  # unknown means above the threshold, not at it
    assert "unknown where score > 0.6" in capsys.readouterr().out


def test_command_takes_names_and_leaves_unlabelled_rows_out(tmp_path, capsys):
    file = tmp_path / "p.csv"
    file.write_text(GOOD + "3,,ant,0.2,ant\n")
    assert main([str(file), "--shared", "ant, bee", "--source-private", "cow"]) == 0
    text = capsys.readouterr().out
    assert "universal label sets, 3 images" in text and "1 rows without a label left out" in text


def test_module_runs_as_a_script(folder):
    run = [sys.executable, "-m", "tllib_ext.evaluation", str(folder / "predictions.csv")]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0 and "closed_accuracy" in done.stdout and not done.stderr


BAD = {
    "no column score": ("index,label,predicted,top1\n0,ant,ant,ant\n", "has no column score: expected the header index,"),
    "unknown class": (GOOD + "3,ant,bea,0.1,ant\n", "predicted, row 4: unknown class 'bea': did you mean 'bee'"),
    "private label": (GOOD + "3,cow,ant,0.1,ant\n", "label, row 4: 'cow' is a source-private class"),
    "unknown as top1": (GOOD + "3,ant,ant,0.1,unknown\n", "top1, row 4: unknown class 'unknown'"),
    "NaN score": (GOOD + "3,ant,ant,nan,ant\n", "score, row 4: found NaN, expected a number"),
    "no score": (GOOD + "3,ant,ant,,ant\n", "score, row 4: found '', expected a number"),
    "score in words": (GOOD + "3,ant,ant,high,ant\n", "score, row 4: found 'high', expected a number"),
    "index in words": (GOOD + "x,ant,ant,0.1,ant\n", "index, row 4: found 'x', expected an integer"),
    "index too large": (GOOD + "9" * 30 + ",ant,ant,0.1,ant\n", "expected an integer"),
    "index twice": (GOOD + "1,ant,ant,0.1,ant\n", "index 1 stands twice"),
    "short row": (GOOD + "3,ant,ant\n", "row 4: 3 cells, the header has 5"),
    "open quote": (GOOD + '3,"ant,ant,0.1,ant\n4,ant,ant,0.1,ant\n', "row 4: 2 cells"),
    "column twice": (HEADER.strip() + ",score\n0,ant,ant,1,ant,2\n", "has the column score twice"),
    "late row": (HEADER + "".join(f"{i},ant,ant,1,ant\n" for i in range(CHUNK)) + "x,,,,\n", f"row {CHUNK + 1}: "),
    "only a header": (HEADER, "has a header and no rows"),
    "empty": ("", "is empty: expected the header"),
    "semicolons": (GOOD.replace(",", ";"), "is not a CSV file of this kind"),
    "an image": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\xff", "is not a CSV file"),
    "one long line": ("x" * 200_000, "is not a CSV file"),
    "no label at all": (HEADER + "0,,ant,0.1,ant\n", "no row has a label"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line_and_exit_code_2(folder, capsys, name):
    content, message = BAD[name]
    (folder / "predictions.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    out = folder / "metrics.json"
    assert main([str(folder / "predictions.csv"), "--json", str(out)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert not out.exists()


@pytest.mark.parametrize(
    "config, arguments, message",
    [
        (None, [], "with the label sets: give --split-file JSON or --shared"),
        ("{", [], "has no label sets"),
        ("[]", [], "has no label sets"),
        ("{}", [], "has no label sets"),
        ('{"split": "2/2/2"}', [], "has no label sets"),
        ('{"split": {"shared": "ab"}}', [], "has no label sets"),
        ('{"split": {"common": ["a", "b"]}}', [], "has no label sets"),
        ('{"split": {"shared": ["a"]}}', [], "at least 2 source classes"),
        (None, ["--split-file", "nowhere.json"], "there is no nowhere.json"),
        (None, ["--source-private", "cow"], "need --shared"),
        (None, ["--shared", "ant,bee", "--split-file", "x"], "not both"),
        (None, ["--shared", "ant,bee"], "unknown class 'cow'"),
    ],
)
def test_bad_label_sets_are_one_line_and_exit_code_2(tmp_path, capsys, config, arguments, message):
    (tmp_path / "predictions.csv").write_text(GOOD)
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert main([str(tmp_path / "predictions.csv"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_missing_files_folders_and_numbers_are_one_line_and_exit_code_2(folder, capsys):
    assert main([str(folder / "nothing.csv")]) == 2
    assert main([str(folder / "nothing.csv"), "--shared", "a,b"]) == 2
    assert main([str(folder)]) == 2
    assert main([str(folder / "predictions.csv"), "--threshold", "nan"]) == 2
    assert main([str(folder / "predictions.csv"), "--json", str(folder / "no" / "such" / "out.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 and all(line.startswith("error: ") for line in lines)
