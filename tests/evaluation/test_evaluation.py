"""The evaluator against matrices worked by hand and bugs that other evaluators had; what it takes and refuses."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from tllib_ext.errors import UserError
from tllib_ext.evaluation import DEFINITIONS, OpenSetEvaluator, evaluate, threshold_curve
from tllib_ext.methods.base import Prediction
from tllib_ext.split import LabelSplit

UNIVERSAL = LabelSplit(["ant", "bee", "cat"], ["cow", "dog"], ["eel", "fox"])
SPLITS = [LabelSplit(["ant", "bee"]), LabelSplit(["ant", "bee"], ["cow"]), LabelSplit(["ant", "bee"], [], ["eel"]), UNIVERSAL]
SCORE_METRICS = ("auroc", "aupr_unknown", "aupr_known", "fpr_known_at_95_unknown_recall", "oscr")


def of_matrix(matrix, split):
    """labels and predicted that have this confusion matrix."""
    matrix = np.asarray(matrix)
    labels, predicted = np.indices(matrix.shape)
    return np.repeat(labels.ravel(), matrix.ravel()), np.repeat(predicted.ravel(), matrix.ravel())


# --- by hand ---


def test_universal_matrix_worked_by_hand():
    # rows and columns: ant bee cat | cow dog | unknown
    matrix = [
        [6, 1, 0, 1, 0, 2],  # ant 6/10
        [0, 4, 0, 0, 0, 1],  # bee 4/5
        [0, 0, 0, 0, 0, 0],  # cat: no target image
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 0, 2, 0, 3, 14],  # unknown 14/20
    ]
    labels, predicted = of_matrix(matrix, UNIVERSAL)
    report = evaluate(labels, predicted, np.zeros(35), UNIVERSAL)
    assert report.os_star == pytest.approx(0.7, abs=1e-9)
    assert report.unk == pytest.approx(0.7, abs=1e-9)
    assert report.os == pytest.approx((0.6 + 0.8 + 0.7) / 3, abs=1e-9)
    assert report.h_score == pytest.approx(0.7, abs=1e-9)
    assert report.accuracy == pytest.approx(24 / 35, abs=1e-9)
    assert report.confusion.tolist() == matrix
    assert report.empty_classes == ("cat",)
    assert report.per_class == {"ant": (0.6, 10), "bee": (0.8, 5), "cat": (None, 0), "unknown": (0.7, 20)}
    assert (report.num_images, report.scenario) == (35, "universal")
    assert report.closed_accuracy is None and report.oscr is None
    assert report.auroc == 0.5  # all scores equal


def test_score_metrics_worked_by_hand():
    split = SPLITS[2]
    labels = np.array([0, 0, 1, 1, 2, 2])
    score = np.array([0.1, 0.5, 0.3, 0.8, 0.4, 0.9])
    closed = np.array([0, 0, 1, 0, 1, 1])
    report = evaluate(labels, np.where(score > 0.45, 2, closed), score, split, closed_pred=closed)
    assert report.auroc == pytest.approx(6 / 8, abs=1e-9)  # 0.4 beats 0.1, 0.3; 0.9 beats all four
    assert report.aupr_unknown == pytest.approx((1 / 1 + 2 / 4) / 2, abs=1e-9)  # found at ranks 1 and 4
    assert report.aupr_known == pytest.approx((1 + 1 + 3 / 4 + 4 / 5) / 4, abs=1e-9)  # ranks 1, 2, 4, 5 from below
    assert report.fpr_known_at_95_unknown_recall == pytest.approx(2 / 4, abs=1e-9)  # both unknown found at 0.4
    # (unknown accepted, known right): (0, 2/4) up to 0.3, (1/2, 2/4) at 0.4, (1/2, 3/4) at 0.5, (1, 3/4) at 0.9
    assert report.oscr == pytest.approx(0.5 * 0.5 + 0.5 * 0.75, abs=1e-9)
    assert report.closed_accuracy == pytest.approx((1 + 1 / 2) / 2, abs=1e-9)
    assert (report.os_star, report.unk) == (0.5, 0.5)


def test_95_percent_is_95_of_100_not_94():
    split = SPLITS[2]
    labels = np.array([2] * 100 + [0] * 10)
    score = np.r_[np.arange(100.0), np.arange(10.0)]  # the 95 highest unknown scores are 5..99: known 5..9 reach 5
    report = evaluate(labels, labels, score, split)
    assert report.fpr_known_at_95_unknown_recall == pytest.approx(0.5, abs=1e-9)


def test_threshold_curve_worked_by_hand():
    split = SPLITS[2]
    labels, closed = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 1])
    score = np.array([1.0, 2.0, 3.0, 3.0, 4.0])
    curve = threshold_curve(labels, closed, score, split)
    assert curve.threshold[0] < 1 and curve.threshold[1:].tolist() == [1, 2, 3, 4]
    assert curve.os_star == pytest.approx([0, 0.25, 0.25, 0.75, 0.75])
    assert curve.unk == pytest.approx([1, 1, 1, 0.5, 0])
    assert curve.os == pytest.approx([1 / 3, 0.5, 0.5, 2 / 3, 0.5])
    assert curve.h_score == pytest.approx([0, 0.4, 0.4, 0.6, 0])


# --- bugs of other evaluators ---


def test_h_score_averages_the_shared_classes_only_with_source_private_ones_present():
    """OVANet #1, #2: the known accuracy inside H took UNK in when there were source-private classes.

    The recalls are those of the report there (OfficeHome Art to Clipart, 10/5/50), which printed H = 0.6303.
    """
    right = [(12, 15), (9, 56), (19, 64), (15, 98), (89, 99), (40, 99), (36, 73), (21, 23), (23, 78), (1, 3)]
    right += [(901, 1083)]
    names = [f"class{i}" for i in range(65)]
    split = LabelSplit.parse("10/5/50", names)
    matrix = np.zeros((16, 16), int)
    for row, (hit, count) in zip([*range(10), split.unknown], right):
        matrix[row, row] = hit
        matrix[row, 12] = count - hit  # the rest called a source-private class
    report = evaluate(*of_matrix(matrix, split), np.zeros(matrix.sum()), split)
    known = sum(hit / count for hit, count in right[:10]) / 10
    unknown = 901 / 1083
    assert report.os == pytest.approx(0.5072753, abs=1e-6)  # "acc per class"
    assert report.os_star == pytest.approx(known, abs=1e-9)
    assert report.h_score == pytest.approx(2 * known * unknown / (known + unknown), abs=1e-9)
    assert report.h_score < 0.61


def test_unknown_is_not_the_first_private_class():
    """DANCE #4: the prediction "unknown" had the number of the first source-private class."""
    first_private = UNIVERSAL.source_index("cow")
    assert first_private == len(UNIVERSAL.shared) != UNIVERSAL.unknown
    labels = np.array([0, 1, 2, UNIVERSAL.unknown, UNIVERSAL.unknown])
    called_private = np.array([0, 1, 2, first_private, first_private])
    assert evaluate(labels, called_private, np.zeros(5), UNIVERSAL).unk == 0
    called_unknown = np.array([0, 1, 2, UNIVERSAL.unknown, UNIVERSAL.unknown])
    assert evaluate(labels, called_unknown, np.zeros(5), UNIVERSAL).unk == 1


def test_closed_set_has_no_h_score():
    """DCC #15: a closed-set run printed H-score 0.0."""
    split = SPLITS[0]
    report = evaluate([0, 1, 1], [0, 1, 2], [0.1, 0.2, 0.3], split, closed_pred=[0, 1, 1])
    assert report.scenario == "closed"
    assert (report.unk, report.h_score) == (None, None)
    assert all(getattr(report, name) is None for name in SCORE_METRICS)
    assert report.os == report.os_star == pytest.approx(0.75, abs=1e-9)  # rejecting a known image is an error
    assert report.closed_accuracy == 1
    assert "unknown" not in report.per_class
    assert "not defined" in report.table()


def test_partial_set_counts_a_private_answer_as_an_error_and_no_empty_row():
    split = SPLITS[1]
    report = evaluate([0, 0, 1, 1], [0, 2, 1, 1], np.zeros(4), split)
    assert (report.scenario, report.os, report.os_star, report.h_score) == ("partial", 0.75, 0.75, None)
    assert report.empty_classes == ()  # the source-private row has no image by definition


def test_only_unknown_images():
    report = evaluate([5, 5], [5, 0], [1.0, 0.0], UNIVERSAL, closed_pred=[0, 0])
    assert (report.os, report.unk) == (0.5, 0.5)
    assert (report.os_star, report.h_score, report.closed_accuracy) == (None, None, None)
    assert report.empty_classes == ("ant", "bee", "cat")
    assert all(getattr(report, name) is None for name in SCORE_METRICS)


def test_open_set_split_without_unknown_images_in_the_batch():
    report = evaluate([0, 1], [0, 1], [1.0, 0.0], SPLITS[2])
    assert report.h_score is None and report.per_class["unknown"] == (None, 0)
    assert "no images" in report.table()


def test_high_score_means_unknown():
    labels = np.array([0, 1, 2, 5, 5])
    score = np.array([0.0, 0.1, 0.2, 0.8, 0.9])
    right = evaluate(labels, labels, score, UNIVERSAL, closed_pred=np.array([0, 1, 2, 0, 0]))
    assert (right.auroc, right.aupr_unknown, right.aupr_known, right.oscr) == (1, 1, 1, 1)
    assert right.fpr_known_at_95_unknown_recall == 0
    inverted = evaluate(labels, labels, -score, UNIVERSAL, closed_pred=np.array([0, 1, 2, 0, 0]))
    assert (inverted.auroc, inverted.oscr, inverted.fpr_known_at_95_unknown_recall) == (0, 0, 1)


def test_h_score_is_zero_when_both_recalls_are():
    assert evaluate([0, 5], [1, 0], [0.0, 0.0], UNIVERSAL).h_score == 0


def test_infinite_scores_keep_their_place():
    labels = np.array([0, 1, 5, 5, 0])
    closed = np.array([0, 1, 0, 0, 0])
    finite = np.array([-9.0, 1.0, 2.0, 9.0, 9.0])
    infinite = np.where(np.abs(finite) == 9, np.sign(finite) * np.inf, finite)
    expected = evaluate(labels, labels, finite, UNIVERSAL, closed_pred=closed)
    assert evaluate(labels, labels, infinite, UNIVERSAL, closed_pred=closed) == expected
    curve = threshold_curve(labels, closed, infinite, UNIVERSAL)
    assert curve.threshold.tolist() == [-np.inf, 1, 2, np.inf]
    assert curve.unk.tolist() == [1, 1, 0.5, 0]


# --- the evaluator object ---


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_of_any_precision(dtype):
    evaluator = OpenSetEvaluator(SPLITS[2])
    probs = torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]], dtype=dtype, requires_grad=True)
    answer = Prediction(probs, torch.tensor([0.25, 0.5, 0.75], dtype=dtype), torch.tensor([False, False, True]))
    evaluator.update(answer, torch.tensor([0, 1, 2]), torch.tensor([4, 5, 6], dtype=torch.int32))
    assert (evaluator.compute().os, evaluator.compute().auroc) == (1, 1)
    evaluator.reset()
    with pytest.raises(UserError, match="no target image"):
        evaluator.compute()


def test_a_repeated_image_counts_once_and_only_if_it_agrees():
    split = SPLITS[2]

    def add(evaluator, label, closed, score, unknown, index=7):
        evaluator.update(Prediction(np.eye(2)[[closed]], np.array([score]), np.array([unknown])), [label], [index])

    evaluator = OpenSetEvaluator(split)
    add(evaluator, 0, 0, 0.5, False)
    add(evaluator, 0, 0, 0.5 + 1e-7, False)  # the same image in a batch of another size
    add(evaluator, 2, 0, 0.9, True, index=8)
    add(evaluator, 2, 0, 50.0, True, index=9)
    add(evaluator, 2, 0, 50.1, True, index=9)  # half precision
    assert evaluator.compute().num_images == 3
    others = {"labels": (1, 0, 0.5, False), "predicted": (0, 0, 0.5, True), "score": (0, 0, 0.8, False)}
    for name, other in others.items():
        contradicted = OpenSetEvaluator(split)
        contradicted.merge(evaluator)
        add(contradicted, *other)
        with pytest.raises(UserError, match=f"image 7 was evaluated twice with different {name}"):
            contradicted.compute()
    with pytest.raises(UserError, match="different label sets"):
        evaluator.merge(OpenSetEvaluator(UNIVERSAL))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"score": [0.1, float("nan")]}, "NaN for 1 of 2 images, the first at row 1"),
        ({"score": [0.1]}, "as many of each"),
        ({"labels": [0, 6]}, "labels: expected 0..5, found 0..6"),
        ({"labels": [0, -1]}, "found -1..0"),
        ({"labels": [0, 3]}, "'cow', a source-private class"),
        ({"labels": [0.0, 1.0]}, "integer"),
        ({"predicted": [[0], [1]]}, "integer"),
        ({"closed_pred": [0, 5]}, "closed_pred: expected 0..4"),
        ({"probs": np.zeros((2, 6))}, "rows of 5 classes"),
        ({"probs": np.full((2, 5), np.nan)}, "probs: NaN"),
        ({"probs": np.zeros((2, 5)), "closed_pred": [0, 0]}, "not both"),
        ({"labels": [], "predicted": [], "score": []}, "no target image"),
        ({"split": SPLITS[0], "labels": [0, 2]}, "labelled unknown, but the split 2/0/0 has no target-private class"),
    ],
)
def test_bad_arrays_are_refused(change, message):
    good = {"labels": [0, 1], "predicted": [0, 1], "score": [0.1, 0.2], "split": UNIVERSAL}
    evaluate(**good)
    with pytest.raises(UserError, match=message):
        evaluate(**{**good, **change})


def test_table_names_confusions_and_empty_classes_and_prints_no_control_characters():
    split = LabelSplit(["a\x1b[31mnt", "bee", "caf\u00e9"], [], ["eel"])
    report = evaluate([0, 0, 0, 3], [0, 3, 3, 1], np.zeros(4), split)
    text = report.table()
    assert "\x1b" not in text and r"a\x1b[31mnt" in text
    row = next(line for line in text.splitlines() if "[31mnt" in line)
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["3", "0.3333", "unknown 0.667"]
    assert "left out of every mean: bee, caf\u00e9" in text
    assert all(definition in text for definition in DEFINITIONS.values())
    assert list(report.flat()) == [*DEFINITIONS, "num_images", "scenario"]


def test_importing_the_evaluator_imports_neither_torch_nor_scikit_learn():
    code = "import sys, tllib_ext.evaluation; sys.exit(not {'torch', 'sklearn', 'matplotlib'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
