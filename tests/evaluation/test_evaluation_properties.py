"""The evaluator against scikit-learn and longhand sums, and what must hold for any labels, answers and scores."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, confusion_matrix, recall_score, roc_auc_score

from tllib_ext.evaluation import DEFINITIONS, OpenSetEvaluator, evaluate, oscr, threshold_curve
from tllib_ext.methods.base import Prediction
from tllib_ext.split import LabelSplit

CLOSED, PARTIAL = LabelSplit(["ant", "bee"]), LabelSplit(["ant", "bee"], ["cow"])
OPEN, UNIVERSAL = (LabelSplit(["ant", "bee"], [], ["eel"]), LabelSplit(["ant", "bee", "cat"], ["cow", "dog"], ["eel", "fox"]))
FEW = settings(deadline=None, max_examples=40)


@st.composite
def cases(draw, splits=(CLOSED, PARTIAL, OPEN, UNIVERSAL), both=False):
    """labels, predicted, closed_pred, score with ties, split."""
    split = draw(st.sampled_from(splits))
    allowed = [*split.shared_labels] + [split.unknown] * bool(split.target_private)
    labels = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=40))
    if both:
        labels += [0, split.unknown]
    n = len(labels)
    closed = draw(st.lists(st.integers(0, split.num_source - 1), min_size=n, max_size=n))
    score = draw(st.lists(st.integers(-6, 6).map(lambda v: v / 4), min_size=n, max_size=n))
    unknown = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    labels, closed, score = np.array(labels), np.array(closed), np.array(score)
    return labels, np.where(unknown, split.unknown, closed), closed, score, split


def prediction(labels, predicted, closed, score, split):
    """A method's answer whose argmax and decision are the given ones."""
    return Prediction(np.eye(split.num_source)[closed], score, predicted == split.unknown)


@FEW
@given(cases(both=True, splits=(OPEN, UNIVERSAL)))
def test_agrees_with_scikit_learn_and_longhand(case):
    labels, predicted, closed, score, split = case
    report = evaluate(labels, predicted, score, split, closed_pred=closed)
    every = [*split.shared_labels, split.unknown]
    recalls = dict(zip(every, recall_score(labels, predicted, labels=every, average=None, zero_division=np.nan)))
    shared = [v for k, v in recalls.items() if k != split.unknown and not math.isnan(v)]
    assert report.os_star == pytest.approx(np.mean(shared), abs=1e-9)
    assert report.unk == pytest.approx(recalls[split.unknown], abs=1e-9)
    names = range(len(split.label_names))
    assert (report.confusion == confusion_matrix(labels, predicted, labels=names)).all()
    unknown = labels == split.unknown
    assert report.auroc == pytest.approx(roc_auc_score(unknown, score), abs=1e-9)
    assert report.aupr_unknown == pytest.approx(average_precision_score(unknown, score), abs=1e-9)
    assert report.aupr_known == pytest.approx(average_precision_score(~unknown, -score), abs=1e-9)
    pairs = [(u > k) + (u == k) / 2 for u in score[unknown] for k in score[~unknown]]
    assert report.auroc == pytest.approx(np.mean(pairs), abs=1e-9)
    enough = [t for t in score if np.mean(score[unknown] >= t) >= 0.95]
    assert report.fpr_known_at_95_unknown_recall == pytest.approx(np.mean(score[~unknown] >= max(enough)), abs=1e-9)
    # OSCR: a known image counts, if its class is right, with the share of unknown images it comes before.
    right = [(u > k) + (u == k) / 2 for u in score[unknown] for k in score[(closed == labels) & ~unknown]]
    assert report.oscr == pytest.approx(sum(right) / len(pairs), abs=1e-9)


@FEW
@given(cases(), st.sampled_from([None, 2, 5, 200]))
def test_threshold_curve_is_the_evaluation_at_every_threshold(case, points):
    labels, _, closed, score, split = case
    curve = threshold_curve(labels, closed, score, split, points=points)
    assert (np.diff(curve.threshold) > 0).all()
    assert points is None or len(curve.threshold) <= points
    for i, threshold in enumerate(curve.threshold):
        report = evaluate(labels, np.where(score > threshold, split.unknown, closed), score, split)
        for name in ("os", "os_star", "unk", "h_score"):
            value, expected = getattr(curve, name), getattr(report, name)
            assert (value is None) == (expected is None)
            assert value is None or value[i] == pytest.approx(expected, abs=1e-9)


@FEW
@given(cases())
def test_bounds_and_identities(case):
    labels, predicted, closed, score, split = case
    report = evaluate(labels, predicted, score, split, closed_pred=closed)
    assert all(value is None or -1e-12 <= value <= 1 + 1e-12 for value in (getattr(report, n) for n in DEFINITIONS))
    present = sum(count > 0 for name, (_, count) in report.per_class.items() if name != "unknown")
    if report.os_star is not None and report.unk is not None:
        assert report.os == pytest.approx((present * report.os_star + report.unk) / (present + 1), abs=1e-9)
        low, high = sorted((report.os_star, report.unk))
        assert low - 1e-12 <= report.h_score <= high + 1e-12
        assert report.oscr <= report.auroc + 1e-12
        assert report.oscr <= np.mean((closed == labels)[labels != split.unknown]) + 1e-12
    if report.closed_accuracy is not None:
        assert report.closed_accuracy >= report.os_star - 1e-12  # rejection never adds a right shared image
    assert (report.h_score is None) == (report.os_star is None or report.unk is None)
    assert present + len(report.empty_classes) == len(split.shared)
    assert report.confusion.sum() == report.num_images == len(labels)
    json.dumps(report.to_dict(), allow_nan=False)
    assert report.table().isascii()


@FEW
@given(cases())
def test_monotone_transforms_of_the_score_change_nothing(case):
    labels, predicted, closed, score, split = case
    expected = evaluate(labels, predicted, score, split, closed_pred=closed)
    for transform in (np.exp, np.arctan, lambda s: 3 * s - 100):
        assert evaluate(labels, predicted, transform(score), split, closed_pred=closed) == expected


@FEW
@given(cases(), st.data())
def test_order_batches_and_shards_do_not_matter(case, data):
    labels, predicted, closed, score, split = case
    n = len(labels)
    expected = evaluate(labels, predicted, score, split, closed_pred=closed)
    order = np.array(data.draw(st.permutations(range(n))), dtype=int)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    padding = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=4)), dtype=int)
    shards = [OpenSetEvaluator(split) for _ in range(3)]
    for number, rows in enumerate([*np.split(order, cuts), padding]):
        answer = prediction(labels[rows], predicted[rows], closed[rows], score[rows], split)
        shards[number % 3].update(answer, labels[rows], rows)
    shards[0].merge(shards[1])
    shards[0].merge(pickle.loads(pickle.dumps(shards[2].state())))
    report = shards[0].compute()
    assert report == expected
    assert (report.confusion == expected.confusion).all()


def test_oscr_of_a_perfect_classifier_is_the_auroc():
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 1, 2, 5], 200)
    score = rng.normal(size=200).round(1)
    assert oscr(labels, np.minimum(labels, 4), score, UNIVERSAL) == pytest.approx(roc_auc_score(labels == 5, score), abs=1e-9)
