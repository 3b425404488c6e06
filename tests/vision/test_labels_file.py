"""Labels of a CSV file: which row belongs to which image, annotators, the true class, and files that do not fit."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tllib_ext.cli.main import main
from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets.labels_file import GivenLabels, majority
from tllib_ext.vision.datasets.universal import UniversalView


class Listed:
    classes, loader = ["a", "b", "c", "u"], None
    samples = [(f"/data/one/{name}/{i}.png", k) for k, name in enumerate("abcu") for i in range(2)]


VIEW = UniversalView(Listed, LabelSplit(["c", "a"], ["b"], ["u"]), "source")
NAMES = [path.removeprefix("/data/one/") for path in VIEW.paths]


def given(tmp_path, header, *columns, **more):
    file = tmp_path / "labels.csv"
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in zip(*columns))]) + "\n")
    return GivenLabels(VIEW, file, **more)


def test_rows_are_found_by_path_or_index_and_labels_by_name_or_number(tmp_path):
    labels = ["b", "a", "2", "b", "c", "c"]  # 2 is the data set's c
    by_path = given(tmp_path, "path,label", NAMES[::-1], labels[::-1], rate=0.3)
    assert by_path.targets.tolist() == [2, 1, 0, 2, 0, 0] and by_path.rate == 0.3 and by_path.truth is None
    assert by_path.samples[0] == ("/data/one/a/0.png", 2)
    by_index = given(tmp_path, "index,label", range(6), labels)
    assert np.array_equal(by_index.targets, by_path.targets) and (by_index.agreement == 1).all()


def test_the_true_class_is_for_evaluation_only(tmp_path):
    labels = given(tmp_path, "path,clean,label", NAMES, "aabbcu", "babbcc")
    assert labels.targets.tolist() == [2, 1, 2, 2, 0, 0] and labels.truth.tolist() == [1, 1, 2, 2, 0, 3]
    assert labels.realised_rate == pytest.approx(2 / 6) and labels.rate == 0
    assert labels.realised_transition.tolist() == [[1, 0, 0], [0, 0.5, 0.5], [0, 0, 1]]


def test_the_majority_of_the_annotators_counts(tmp_path):
    labels = given(tmp_path, "path,x,y,z", NAMES, "aabbcc", "bababa", "bacbca", columns="x,y,z")
    assert labels.targets.tolist() == [2, 1, 2, 2, 0, 1]  # image 2: b, b, c
    assert labels.agreement.tolist() == pytest.approx([2 / 3, 1, 2 / 3, 2 / 3, 2 / 3, 2 / 3])
    assert labels.votes.sum(1).tolist() == pytest.approx([1] * 6)
    tie, _ = majority(np.array([[2, 0], [1, 1], [0, 1], [1, 0]]), 3)
    assert tie.tolist() == [1, 0]


def test_held_out_images_keep_their_votes_and_the_seed_chooses_them():
    samples = [(f"{name}/{i}.png", k) for k, name in enumerate("abc") for i in range(20)]
    view = UniversalView(
        type("Many", (), {"classes": list("abc"), "loader": None, "samples": samples}), LabelSplit("abc"), "source"
    )
    rng, _labels = np.random.default_rng(0), [k for _, k in samples]
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"{path},{'abc'[k]},{'abc'[v]},{'abc'[w]}" for (path, k), v, w in zip(samples, *rng.integers(3, size=(2, 60)))]
        file = Path(folder, "labels.csv")
        file.write_text("\n".join(["path,x,y,z", *rows]))
        whole = GivenLabels(view, file, "x,y,z")
    assert len(whole) == 60 and 0.4 < whole.agreement.mean() < 1
    for part in whole.hold_out(0.4, seed=1):
        place = [whole.paths.index(path) for path in part.paths]
        np.testing.assert_array_equal(part.votes, whole.votes[place])
        np.testing.assert_array_equal(part.agreement, whole.agreement[place])
        np.testing.assert_allclose(part.agreement, part.votes[np.arange(len(part)), part.targets])


BAD = {
    "no column path and no column index": ("file,label", NAMES, "aabbcc"),
    "label columns x, y: name the one": ("path,x,y", NAMES, "aabbcc", "aabbcc"),
    "no column of labels": ("path,clean", NAMES, "aabbcc"),
    "2 of 6 source images have no row, the first is /data/one/a/0.png": ("path,label", NAMES[2:], "bbcc"),
    "'a/0.png' is in two rows": ("path,label", NAMES[:1] + NAMES, "aaabbcc"),
    "fits two images": ("path,label", ["0.png", "1.png"], "ab"),
    "label 'x' is no source class": ("path,label", NAMES, "axbbcc"),
    "label 'u' is no source class": ("path,label", NAMES, "aubbcc"),
    "an image has no label": ("path,label", NAMES, ["a", "", *"bbcc"]),
    "no image has the label 'c'": ("path,label", NAMES, "aabbaa"),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_files_get_one_clear_line(tmp_path, message):
    with pytest.raises(UserError, match=message) as error:
        given(tmp_path, *BAD[message])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_semicolons_and_tabs_are_read(tmp_path, mark):
    file = tmp_path / "labels.csv"
    file.write_text("\n".join(["path" + mark + "label", *(f"{name}{mark}{label}" for name, label in zip(NAMES, "babbcc"))]))
    assert GivenLabels(VIEW, file).targets.tolist() == [2, 1, 2, 2, 0, 0]


def test_a_list_file_is_read_and_its_numbers_are_positions(tmp_path):
    file = tmp_path / "corrected.txt"
    file.write_text("".join(f"{name} {number}\n" for name, number in zip(NAMES, [1, 0, 1, 1, 2, 2])))
    labels = GivenLabels(VIEW, file)
    assert labels.targets.tolist() == [2, 1, 2, 2, 0, 0] and labels.truth is None

    class Numbers(Listed):  # names that are numbers of other classes
        classes = ["2", "0", "1", "u"]

    view = UniversalView(Numbers, LabelSplit(["1", "2"], ["0"], ["u"]), "source")
    assert GivenLabels(view, file).targets.tolist() == [2, 1, 2, 2, 0, 0]


def test_a_pipe_is_refused_at_once(tmp_path):
    import os

    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(UserError, match="not a regular file"):
        GivenLabels(VIEW, tmp_path / "labels.csv")


def test_bad_columns_and_absent_files(tmp_path):
    with pytest.raises(UserError, match="did you mean 'label'"):
        given(tmp_path, "path,label", NAMES, "aabbcc", columns="lable")
    with pytest.raises(UserError, match="cannot read"):
        GivenLabels(VIEW, tmp_path / "none.csv")


def test_a_run_with_the_labels_of_a_file(tmp_path, capsys):
    rng, labels = np.random.RandomState(1), np.repeat(np.arange(3), 30)
    for domain in ("one", "two"):
        x = rng.randn(90, 6) + 4 * np.eye(6)[labels]
        np.savez(tmp_path / f"{domain}.npz", features=x, labels=labels, classes=np.array(list("abc")))
    file, run = tmp_path / "labels.csv", tmp_path / "run"
    rows = [f"{i},{'abc'[k]},{'abc'[(k + (i % 10 == 0)) % 3]}" for i, k in enumerate(labels)]
    file.write_text("\n".join(["index,true,given", *rows]))
    words = [str(tmp_path), "-d", "features", "-s", "one", "-t", "two", "-m", "source_only", "--steps", "20", "--no-report"]
    assert main(["train", *words, "--labels", str(file), "--labels-column", "given", "--log", str(run)]) == 0
    assert "9 of 90 labels wrong" in capsys.readouterr().out
    results = json.loads((run / "results.json").read_text())
    assert results["realised_rate"] == pytest.approx(0.1) and results["labels_column"] == "given"
    assert (run / "suspects.csv").read_text().splitlines()[0].endswith("clean,is_wrong")
    assert main(["train", *words, "--labels", str(file), "--noise", "pair"]) == 2
    assert "leave out" in capsys.readouterr().err
