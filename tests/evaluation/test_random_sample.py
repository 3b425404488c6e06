"""Estimates from a random sample: inclusion probabilities, ends of intervals, coverage over simulated draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.evaluation.random_sample import LEVEL, METRICS, Sample, draw_sample, estimates, read_sample, write_sample
from tllib_ext.split import LabelSplit

NOBODY = np.empty(0, dtype=np.int64)


def target(seed, classes=8, size=900, unknown=0.35, right=0.8):
    """True labels, and two decisions about them that are right for each class at a rate of its own."""
    rng = np.random.default_rng(seed)
    shares = np.r_[rng.dirichlet(np.full(classes, 3.0)) * (1 - unknown), unknown]
    true = rng.choice(classes + 1, size, p=shares)
    decisions = []
    for level in (right - 0.2, right):
        rates = rng.beta(8 * level, 8 * (1 - level), classes + 1)
        wrong = np.where(rng.random(size) < 0.6, classes, rng.integers(0, classes + 1, size))
        decisions.append(np.where(rng.random(size) < rates[true], true, wrong))
    return true, dict(zip(("before", "after"), decisions)), LabelSplit([f"c{k}" for k in range(classes)], [], ["new"])


def metrics(true, decided, classes):
    recall = {k: (decided[true == k] == k).mean() for k in range(classes + 1) if (true == k).any()}
    star, unk = np.mean([recall[k] for k in recall if k < classes]), recall.get(classes)
    values = {"unknown_share": (true == classes).mean(), "accuracy": (decided == true).mean(), "os_star": star, "unk": unk}
    return {**values, "os": np.mean([*recall.values()]), "h_score": None if unk is None else 2 * star * unk / (star + unk)}


def truth(sample, true):
    return {int(i): int(true[i]) for i in sample.index}


def test_every_image_has_the_same_probability_and_strata_are_in_proportion():
    decision = np.repeat([0, 1, 2], [500, 300, 200])
    drawn = np.zeros(1000)
    for seed in range(400):
        sample = draw_sample(decision, 100, NOBODY, seed)
        assert np.bincount(sample.stratum).tolist() == [50, 30, 20] and (sample.probability == 0.1).all()
        drawn[sample.index] += 1
    assert drawn.sum() == 40_000 and abs(drawn / 400 - 0.1).max() < 0.1 and np.std(drawn / 400) < 0.02


@given(size=st.integers(1, 60), number=st.integers(1, 80), taken=st.integers(0, 60), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_drawn_images_are_different_and_not_taken(size, number, taken, seed):
    before = np.arange(min(taken, size - 1))
    sample = draw_sample(np.arange(size) % 3, number, before, seed)
    assert len(set(sample.index.tolist())) == len(sample.index) == min(number, size - len(before))
    assert not set(sample.index.tolist()) & set(before.tolist())


def test_all_images_drawn_give_the_metrics_themselves():
    true, decisions, split = target(0, size=120)
    sample = draw_sample(decisions["before"], 120, NOBODY)
    found = estimates(sample, truth(sample, true), decisions, split, NOBODY, NOBODY)
    for name, decided in decisions.items():
        for metric, value in metrics(true, decided, 8).items():
            estimate, low, high = found[name][metric]
            assert estimate == pytest.approx(value) and low <= value <= high and high - low < 0.01


def test_where_nothing_is_wrong_the_interval_ends_at_one_and_begins_below():
    true = np.repeat([0, 1, 2], 100)
    sample = draw_sample(true, 30, NOBODY)
    found = estimates(sample, truth(sample, true), {"before": true}, LabelSplit(["a", "b"], [], ["c"]), NOBODY, NOBODY)["before"]
    for metric in ("accuracy", "os_star", "unk", "os", "h_score"):
        estimate, low, high = found[metric]
        assert estimate == high == 1 and 0.7 < low < 1


def test_without_unknown_images_and_of_nothing():
    true = np.arange(90) % 2
    sample = draw_sample(true, 40, NOBODY)
    split = LabelSplit(["a", "b"], [], ["c"])
    found = estimates(sample, truth(sample, true), {"x": true}, split, NOBODY, NOBODY)["x"]
    assert found["unk"] is None and found["h_score"] is None and found["os"][0] == 1 and found["unknown_share"][1] == 0
    assert estimates(sample, {}, {"x": true}, split, NOBODY, NOBODY) == {}


def test_answered_images_count_in_the_share_of_unknown_only():
    true = np.repeat([0, 2], [60, 40])
    sample = Sample(np.arange(0, 80, 2), true[0:80:2], np.full(40, 0.5))
    split, answered = LabelSplit(["a", "c"], [], ["b"]), np.arange(80, 100)
    found = estimates(sample, truth(sample, true), {"x": true}, split, answered, true[answered])["x"]
    assert found["unknown_share"][0] == pytest.approx((0.25 * 80 + 20) / 100) and found["accuracy"][0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [50, 100])
def test_intervals_cover_the_truth_in_500_draws(number):
    hits = {(name, metric): [] for name in ("before", "after") for metric in METRICS}
    for population in range(10):
        true, decisions, split = target(population, classes=4 + population)
        values = {name: metrics(true, decided, split.num_source) for name, decided in decisions.items()}
        for draw in range(50):
            sample = draw_sample(decisions["before"], number, NOBODY, 1000 * population + draw)
            found = estimates(sample, truth(sample, true), decisions, split, NOBODY, NOBODY, draw)
            for (name, metric), covered in hits.items():
                _, low, high = found[name][metric]
                covered.append(low <= values[name][metric] <= high)
    coverage = {key: np.mean(covered) for key, covered in hits.items()}
    assert LEVEL == 0.95 and min(coverage.values()) >= 0.93, coverage


def test_a_sample_is_read_back(tmp_path):
    sample, paths = draw_sample(np.arange(20) % 2, 6, NOBODY), [f"={i},x.jpg" for i in range(20)]
    write_sample(tmp_path / "m.csv", sample, paths)
    again = read_sample(tmp_path / "m.csv", {path: i for i, path in enumerate(paths)})
    assert all((a == b).all() for a, b in zip(vars(sample).values(), vars(again).values()))
