"""Every further metric against a longhand computation on random small cases."""

import itertools
import json
import math

import numpy as np
import pytest

from tllib_ext.evaluation import FURTHER, further_metrics
from tllib_ext.evaluation.__main__ import main
from tllib_ext.evaluation.discovery import discovery, spherical_kmeans
from tllib_ext.evaluation.files import write_predictions
from tllib_ext.evaluation.further import bootstrap
from tllib_ext.methods.base import Prediction
from tllib_ext.split import LabelSplit

SPLIT = LabelSplit(["a", "b"], ["c"], ["u", "v"])
UNKNOWN = 3


def case(seed, num=40):
    rng = np.random.RandomState(seed)
    labels = rng.choice([0, 1, UNKNOWN], num)
    probs = rng.dirichlet(np.ones(3), num)
    score = np.round(rng.rand(num) + 0.3 * (labels == UNKNOWN), 1)  # with ties
    closed = probs.argmax(1)
    return labels, np.where(score > 0.6, UNKNOWN, closed), score, closed, probs.max(1)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", range(4))
def test_metrics_of_the_score_are_the_definitions(seed):
    labels, predicted, score, closed, top = case(seed)
    found = further_metrics(labels, predicted, score, SPLIT, closed, top)
    known, unknown = (np.flatnonzero((labels != UNKNOWN) == side).tolist() for side in (True, False))
    right, unk = mean(predicted[i] == labels[i] for i in known), mean(predicted[i] == UNKNOWN for i in unknown)
    assert found["h_score_instance"] == pytest.approx(2 * right * unk / (right + unk))
    assert found["closed_instance_accuracy"] == pytest.approx(mean(closed[i] == labels[i] for i in known))
    cuts = [-1.0, *sorted(set(score))]
    accepted = {t: mean(score[i] <= t for i in known) for t in cuts}
    rejected = {t: mean(score[i] > t for i in unknown) for t in cuts}
    assert found["detection_accuracy"] == pytest.approx(max((accepted[t] + rejected[t]) / 2 for t in cuts))
    first = min(t for t in cuts if accepted[t] >= 0.95)
    assert found["fpr_unknown_at_95_known_recall"] == pytest.approx(1 - rejected[first])
    best = 0
    for t in cuts:
        recall = [mean(score[i] <= t and closed[i] == k for i in known if labels[i] == k) for k in (0, 1)]
        best = max(best, 2 * mean(recall) * rejected[t] / (mean(recall) + rejected[t] or 1))
    assert found["oracle_h_score"] == pytest.approx(best)
    area, before = 0.0, (0.0, 0.0)
    for t in sorted(set(score)):
        now = 1 - rejected[t], mean(score[i] <= t and closed[i] == labels[i] for i in known)
        area, before = area + (now[0] - before[0]) * (now[1] + before[1]) / 2, now
    assert found["ucr"] == pytest.approx(area)


@pytest.mark.parametrize("seed", range(3))
def test_calibration_is_the_definition(seed):
    labels, predicted, score, closed, top = case(seed)
    found = further_metrics(labels, predicted, score, SPLIT, closed, top)
    known, total = [i for i in range(40) if labels[i] != UNKNOWN], 0.0
    for b in range(15):
        inside = [i for i in known if b / 15 < top[i] <= (b + 1) / 15]
        if inside:
            gap = mean(closed[i] == labels[i] for i in inside) - mean(top[i] for i in inside)
            total += len(inside) / len(known) * abs(gap)
    assert found["ece_known"] == pytest.approx(total)
    assert found["confidence_unknown"] == pytest.approx(mean(top[i] for i in range(40) if labels[i] == UNKNOWN))


def test_nmi_and_matched_accuracy_are_the_definitions():
    rng = np.random.RandomState(0)
    classes = rng.choice([4, 7, 9], 60)
    x = rng.randn(60, 5) + 2 * np.eye(10)[classes][:, :5] + np.eye(10)[classes][:, 5:]
    clusters = spherical_kmeans(x, 3)
    nmi, accuracy = discovery(x, classes)
    p = {(a, b): mean((classes == a) & (clusters == b)) for a in (4, 7, 9) for b in range(3)}
    pa, pb = {a: mean(classes == a) for a in (4, 7, 9)}, {b: mean(clusters == b) for b in range(3)}
    information = sum(v * math.log(v / pa[a] / pb[b]) for (a, b), v in p.items() if v)
    entropies = [-sum(v * math.log(v) for v in q.values()) for q in (pa, pb)]
    assert nmi == pytest.approx(information / mean(entropies))
    assert accuracy == pytest.approx(max(sum(p[a, b] for a, b in zip(order, range(3))) for order in itertools.permutations(pa)))


def test_h3_is_the_harmonic_mean_of_three():
    labels, predicted, score, closed, top = case(5)
    rng = np.random.RandomState(1)
    private = np.where(rng.rand(40) < 0.5, 8, 9)
    features = rng.randn(40, 4) + 3 * (private == 8)[:, None]
    found = further_metrics(labels, predicted, score, SPLIT, closed, top, features, private)
    unknown = labels == UNKNOWN
    nmi, accuracy = discovery(features[unknown], private[unknown])
    os_star = mean(mean(predicted[labels == k] == k) for k in (0, 1))
    parts = os_star, mean(predicted[unknown] == UNKNOWN), nmi
    assert found["h3_score"] == pytest.approx(3 / sum(1 / part for part in parts)) and found["novel_accuracy"] == accuracy
    assert accuracy > 0.9


def test_intervals_agree_with_resampled_images():
    labels, predicted, *_ = case(2, 200)
    found, rng, drawn = bootstrap(labels, predicted, SPLIT), np.random.RandomState(9), []
    for _ in range(2000):
        rows = rng.randint(0, 200, 200)
        recall = [mean(predicted[rows][labels[rows] == k] == k) for k in (0, 1, UNKNOWN)]
        drawn.append((mean(recall), mean(recall[:2]), recall[2]))
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    assert [found[f"{name}_low"] for name in ("os", "os_star", "unk")] == pytest.approx(list(low), abs=0.015)
    assert [found[f"{name}_high"] for name in ("os", "os_star", "unk")] == pytest.approx(list(high), abs=0.015)
    assert found["h_score_low"] < found["h_score_high"]


def test_without_unknown_images():
    labels, _, score, closed, top = case(3)
    kept = labels != UNKNOWN
    found = further_metrics(labels[kept], closed[kept], score[kept], SPLIT, closed[kept], top[kept])
    assert found["ucr"] == found["closed_instance_accuracy"] == (closed == labels)[kept].mean()
    absent = {"h_score_instance", "oracle_h_score", "detection_accuracy", "confidence_unknown", "h3_score"}
    assert all(found[name] is None for name in absent) and "unk_low" not in found and found["os_low"] == found["os_star_low"]


def test_the_command_prints_them_with_all(tmp_path, capsys):
    rng = np.random.RandomState(0)
    labels, probs, score = rng.choice([0, 1, UNKNOWN], 50), rng.dirichlet(np.ones(3), 50), rng.rand(50)
    file, out = tmp_path / "predictions.csv", tmp_path / "out.json"
    write_predictions(file, Prediction(probs, score, score > 0.5), np.arange(50), ["x"] * 50, SPLIT, 0.5, labels)
    words = [str(file), "--shared", "a,b", "--source-private", "c"]
    assert main(words) == 0 and "ece_known" not in capsys.readouterr().out
    assert main([*words, "--all", "--json", str(out)]) == 0 and "ece_known" in capsys.readouterr().out
    stored = json.loads(out.read_text())
    assert set(FURTHER) <= set(stored) and stored["os_low"] <= stored["os"] <= stored["os_high"]
