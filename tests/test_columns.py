"""Results as rows, tables and short lines; predictions of a loaded run for files, PIL images and arrays; label issues of
probabilities."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tllib_ext import RunConfig, find_label_issues, load_run, train
from tllib_ext.errors import UserError
from tllib_ext.labels.issues import FINE


@pytest.fixture(scope="module")
def run(image_root, tmp_path_factory):
    log = tmp_path_factory.mktemp("run") / "run"
    return train(
        RunConfig(root=str(image_root), source="photo", target="sketch", method="source_only", arch="small_cnn", steps=2,
                  batch_size=6, workers=0, device="cpu", log=str(log), no_report=True, image_size=32)
    )  # fmt: skip


@pytest.fixture(scope="module")
def issues():
    rng = np.random.default_rng(0)
    given = np.repeat(["ant", "bee"], 40)
    given[3] = "bee"
    return find_label_issues(np.eye(8)[np.repeat([0, 1], 40)] + 0.2 * rng.standard_normal((80, 8)), given)


def test_results_are_one_line_each(run, issues):
    loaded = load_run(run.folder)
    for result in (run, loaded, run.predictions, run.suspects, issues, issues.model):
        assert repr(result).startswith(f"{type(result).__name__}(") and len(repr(result)) < 250 and "\n" not in repr(result)
    assert "4 classes" in repr(loaded) or "3 classes" in repr(loaded)


def test_results_have_a_length_and_rows(run, issues):
    for result in (run.predictions, run.suspects, issues):
        rows = list(result)
        assert result and len(result) == len(rows) and [row.index for row in rows] == result.columns()["index"].tolist()
    names = run.predictions.names
    assert {row.predicted for row in run.predictions} <= set(names)
    assert [row.path for row in run.suspects] == run.suspects.path.tolist()
    assert {row.given for row in run.suspects} == {"red", "green", "blue"}
    assert [row.index for row in issues if row.kind != FINE] == [3]


def test_tables_have_names_of_classes(run, issues):
    pytest.importorskip("pandas")
    predictions, suspects, table = run.predictions.to_frame(), run.suspects.to_frame(), issues.to_frame()
    assert len(predictions) == 24 and set(predictions["label"]) == {"red", "green", "unknown"}
    assert predictions["top1"].isin(["red", "green", "blue"]).all() and (predictions["p1"] >= predictions["p2"]).all()
    assert suspects["suggested"].isin(["red", "green", "blue"]).all() and "clean" not in suspects
    assert table.loc[3, ["given", "suggested", "kind"]].tolist() == ["bee", "ant", "another class"]


def test_without_pandas_the_table_is_one_line(issues, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="to_frame\\(\\) needs pandas: pip install pandas"):
        issues.to_frame()


# --- predictions of new images ----------------------------------------------------------------------------------------


def test_files_folders_pil_images_and_arrays_are_predicted_alike(run, image_root):
    folder = image_root / "sketch"
    files = sorted(map(str, folder.rglob("*.png")))
    images = [Image.open(file) for file in files]
    stored = {row.path: row for row in run.predictions}
    for inputs in (str(folder), folder, files, images, np.stack([np.asarray(image) for image in images])):
        for loaded in (run, load_run(run.folder)):
            found = loaded.predict(inputs)
            assert len(found) == 24
            for row, file in zip(found, files):
                twin = next(twin for path, twin in stored.items() if file.endswith(path))
                assert (row.predicted, row.top1) == (twin.predicted, twin.top1) and np.isclose(row.score, twin.score, atol=1e-5)
    assert [row.path for row in run.predict(files)] == files and run.predict(images).path == [str(i) for i in range(24)]
    assert len(run.predict(files[0])) == len(run.predict(images[0])) == len(run.predict(np.asarray(images[0]))) == 1
    mixed = run.predict([files[0], images[1], np.asarray(images[2]), np.zeros((9, 7), np.uint8)])
    assert mixed.path == [files[0], "1", "2", "3"]


@pytest.mark.parametrize(
    "images, message",
    [
        ([], "no images to predict"),
        ("absent.png", "image not found: absent.png"),
        (np.zeros((4, 4, 3)), "image of float64 and shape \\(4, 4, 3\\): expected uint8"),
        (np.zeros((3, 8, 8), np.uint8), "shape \\(3, 8, 8\\): expected uint8 pixels \\(height, width, 3\\)"),
    ],
)
def test_images_that_cannot_be_predicted(run, images, message):
    with pytest.raises(UserError, match=message):
        run.predict(images)


# --- label issues of probabilities ------------------------------------------------------------------------------------


def test_issues_of_probabilities_are_those_that_cleanlab_calls_self_confidence(issues):
    given = np.repeat(["ant", "bee"], 40)
    given[3] = "bee"
    of_probs = find_label_issues(labels=given, pred_probs=issues.pred_probs)
    assert np.flatnonzero(of_probs.kind != FINE).tolist() == [3] and of_probs.suggested[3] == "ant"
    own = issues.pred_probs[np.arange(80), (given == "bee").astype(int)]
    assert np.allclose(of_probs.suspicion, 1 - 2 * own, atol=1e-5) and (of_probs.group == -1).all()
    assert (of_probs.corrected == given).all()
    tensor = find_label_issues(labels=(given == "bee").astype(int), pred_probs=torch.from_numpy(issues.pred_probs))
    assert tensor.suggested[3] == 0 and np.allclose(tensor.suspicion, of_probs.suspicion)


def test_columns_of_classes_that_have_no_label():
    issues = find_label_issues(labels=[0, 2, 2], pred_probs=[[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0]])
    assert issues.suggested.tolist() == [1, 2, 2] and issues.classes.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "words, message",
    [
        ({"labels": [0, 1]}, "either features or pred_probs"),
        ({"features": np.eye(2)}, "has no labels"),
        ({"features": np.eye(2), "labels": [0, 1], "pred_probs": np.eye(2)}, "either features or pred_probs"),
        ({"labels": [0, 1, 1], "pred_probs": np.eye(2)}, "shape \\(2, 2\\), labels 3 rows"),
        ({"labels": ["a", "b"], "pred_probs": np.eye(3)[:2]}, "3 columns, labels have 2 classes"),
        ({"labels": [0, 1], "pred_probs": 2 * np.eye(2)}, "expected probabilities"),
        ({"labels": [0, 1], "pred_probs": np.nan * np.eye(2)}, "expected probabilities"),
    ],
)
def test_errors_of_probabilities(words, message):
    with pytest.raises(UserError, match=message):
        find_label_issues(**words)
