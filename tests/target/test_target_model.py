"""The target model as a whole: recovery, invariances, degenerate inputs, errors and warnings."""

import numpy as np
import pytest

from tllib_ext.errors import UserError
from tllib_ext.target import estimate_target
from tllib_ext.target.diagnosis import LOWER, MORE, WIDTH, group_unknown, share_interval, warnings_of
from tllib_ext.target.graph import Resemblance


def domains(shared, source_private, target_private, per_class=40, dim=48, shift=0.5, noise=1.0, seed=0):
    """Source features and one-hot labels, target features and labels (K = unknown)."""
    rng = np.random.default_rng(seed)
    k = shared + source_private
    means = 2 * rng.standard_normal((k + target_private, dim))
    ys = np.repeat(np.arange(k), per_class)
    yt = np.repeat([*range(shared), *range(k, k + target_private)], per_class)
    offset = shift * rng.standard_normal(dim)
    xs = means[ys] + noise * rng.standard_normal((len(ys), dim))
    xt = means[yt] + noise * rng.standard_normal((len(yt), dim)) + offset
    return xs, np.eye(k)[ys], xt, np.minimum(yt, k)


@pytest.mark.parametrize("sets", [(4, 3, 3), (5, 0, 3), (5, 4, 0), (6, 0, 0)], ids=["universal", "open", "partial", "closed"])
def test_every_scenario_is_recovered_without_being_told(sets):
    xs, r, xt, y = domains(*sets)
    model = estimate_target(xs, r, xt)
    assert (model.labels == y).mean() > 0.97
    assert model.share == pytest.approx((y == r.shape[1]).mean(), abs=0.05)
    assert model.absent == list(range(sets[0], r.shape[1]))
    if sets[2]:
        assert model.num_groups == sets[2]
        assert set(model.groups[model.labels == r.shape[1]]) == set(range(sets[2]))
    assert (model.groups[model.labels < r.shape[1]] == -1).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classes_smaller_than_a_neighbourhood_are_recovered(seed):
    xs, r, xt, y = domains(8, 0, 16, per_class=6, noise=2.0, seed=seed)
    right = estimate_target(xs, r, xt).labels == y
    assert right[y < 8].mean() > 0.95 and right[y == 8].mean() > 0.75


def test_rows_are_probabilities_and_new_samples_get_the_same_posterior():
    xs, r, xt, _ = domains(3, 2, 2)
    model = estimate_target(xs, r, xt)
    assert (model.posterior >= 0).all() and model.posterior.sum(1) == pytest.approx(1, abs=1e-5)
    assert model.predict(xt) == pytest.approx(model.posterior, abs=1e-4)
    alone = np.concatenate([model.predict(row[None]) for row in xt[:5]])
    assert alone == pytest.approx(model.posterior[:5], abs=1e-4)


def test_same_seed_same_answer():
    xs, r, xt, _ = domains(3, 2, 2)
    a, b = estimate_target(xs, r, xt, seed=3), estimate_target(xs, r, xt, seed=3)
    assert (a.posterior == b.posterior).all() and (a.groups == b.groups).all() and a.share_interval == b.share_interval


def test_order_of_the_samples_does_not_matter():
    xs, r, xt, _ = domains(3, 2, 2)
    rng = np.random.default_rng(1)
    p, q = rng.permutation(len(xs)), rng.permutation(len(xt))
    a, b = estimate_target(xs, r, xt), estimate_target(xs[p], r[p], xt[q])
    assert (a.posterior[q] == b.posterior).all() and (a.groups[q] == b.groups).all()


def test_a_permutation_of_the_classes_permutes_the_posterior():
    xs, r, xt, _ = domains(3, 2, 2)
    order = np.array([2, 0, 4, 1, 3])
    a, b = estimate_target(xs, r, xt), estimate_target(xs, r[:, order], xt)
    assert b.posterior[:, :-1] == pytest.approx(a.posterior[:, :-1][:, order], abs=1e-3)


def test_all_unknown_is_said():
    xs, r, _, _ = domains(4, 0, 0)
    _, _, xt, _ = domains(4, 0, 0, seed=9)
    model = estimate_target(xs, r, xt)
    assert model.warnings


def test_features_without_structure_are_said():
    rng = np.random.default_rng(0)
    model = estimate_target(rng.standard_normal((200, 20)), np.eye(5)[rng.integers(0, 5, 200)], rng.standard_normal((200, 20)))
    assert any("true share lies" in text or "far apart" in text for text in model.warnings)


@pytest.mark.parametrize("rank", [4, 10])
def test_weak_features_are_neither_all_unknown_nor_all_known(rank):
    """Variation of the target that has nothing to do with its classes: neighbours are not of one class."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((40, 64))
    ys, yt = np.repeat(np.arange(25), 20), np.repeat([*range(15), *range(25, 40)], 20)
    xs = means[ys] + 2 * rng.standard_normal((len(ys), 64))
    xt = (
        means[yt]
        + 2 * rng.standard_normal((len(yt), 64))
        + rng.standard_normal((len(yt), rank)) @ rng.standard_normal((rank, 64))
    )
    model = estimate_target(xs, np.eye(25)[ys], xt)
    assert 0.1 < model.share < 0.75 and not model.share_known
    assert "the true share lies between" in model.warnings[0]
    known = yt < 15
    assert (model.labels == yt)[known].mean() > 0.15  # chance: 0.04
    assert model.predict(xt[:7]) == pytest.approx(model.posterior[:7], abs=1e-4)


@pytest.mark.parametrize("number", [1, 2, 5, 12])
def test_tiny_targets(number):
    xs, r, xt, _ = domains(3, 1, 1)
    model = estimate_target(xs, r, xt[:number])
    assert model.posterior.shape == (number, 5) and np.isfinite(model.posterior).all()
    assert any("too few" in text for text in model.warnings)


def test_one_source_class():
    xs, r, xt, y = domains(1, 0, 1)
    model = estimate_target(xs, r, xt)
    assert model.posterior.shape == (len(xt), 2) and np.isfinite(model.posterior).all()


def test_constant_features_and_a_class_without_samples():
    model = estimate_target(np.ones((20, 4)), np.eye(3)[np.repeat([0, 1], 10)], np.ones((10, 4)))
    assert np.isfinite(model.posterior).all()


def test_soft_labels_of_the_source_are_used():
    xs, r, xt, y = domains(4, 2, 2)
    model = estimate_target(xs, 0.8 * r + 0.2 / r.shape[1], xt)
    assert (model.labels == y).mean() > 0.95


def test_summary_names_classes():
    xs, r, xt, _ = domains(3, 1, 2)
    text = estimate_target(xs, r, xt).summary(["ant", "bee", "cat", "dog"])
    assert "unknown" in text and "hold: dog" in text


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda s, r, t: (s[:-1], r, t), "one row each"),
        (lambda s, r, t: (s, r, t[:, :-1]), "one backbone"),
        (lambda s, r, t: (s, 2 * r, t), "probabilities"),
        (lambda s, r, t: (s, r, t[:0]), "expected"),
        (lambda s, r, t: (s, r, np.where(t > 2, np.nan, t)), "not finite"),
        (lambda s, r, t: (s[0], r, t), "expected"),
        (lambda s, r, t: (s.astype(str), r, t), "expected numbers"),
    ],
)
def test_bad_input_is_explained(change, words):
    xs, r, xt, _ = domains(3, 1, 1)
    with pytest.raises(UserError, match=words):
        estimate_target(*change(xs, r, xt))


def test_prediction_checks_its_width():
    xs, r, xt, _ = domains(3, 1, 1)
    with pytest.raises(UserError, match="columns"):
        estimate_target(xs, r, xt).predict(xt[:, :-1])


def test_groups_of_nothing_and_of_one():
    assert group_unknown(np.zeros((0, 3)), 0.0)[0] == 0
    one = np.tile([1.0, 0, 0], (20, 1)) + 1e-3 * np.random.default_rng(0).standard_normal((20, 3))
    number, member = group_unknown(one / np.linalg.norm(one, axis=1, keepdims=True), 1.0)
    assert len(member) == 20 and number >= 1


@pytest.mark.parametrize("sizes", [(10, 40, 20), (20, 10, 40), (40, 20, 10), (10, 20, 40)])
def test_groups_are_numbered_by_their_size(sizes):
    rng, true = np.random.default_rng(0), np.repeat([0, 1, 2], sizes)
    z = np.eye(5)[true] + 0.05 * rng.standard_normal((70, 5))
    for seed in range(4):
        number, member = group_unknown(z / np.linalg.norm(z, axis=1, keepdims=True), 3.0, seed)
        assert number == 3 and np.bincount(member).tolist() == [40, 20, 10]
        for group in range(3):
            assert len(set(member[true == group])) == 1


def test_small_classes_beside_many_unknown_samples_are_not_called_absent():
    rng, centres = np.random.default_rng(0), 4 * np.eye(12)
    source, target = np.repeat(np.arange(4), 30), np.r_[np.repeat(np.arange(4), 12), np.repeat(np.arange(5, 10), 100)]
    xs, xt = (centres[labels] + 0.4 * rng.standard_normal((len(labels), 12)) for labels in (source, target))
    model = estimate_target(xs.astype(np.float32), np.eye(4, dtype=np.float32)[source], xt.astype(np.float32))
    assert model.absent == [] and abs(model.share - 500 / 548) < 0.02


def test_the_interval_of_the_share():
    def near(evidence_error, value, error=0.2, weak=False):
        return Resemblance(np.zeros(9, int), np.full(9, value), 0.1, 0.1, (0.3,), 0.3, error, evidence_error, weak)

    half = WIDTH * (0.1 + MORE) / 0.6
    assert share_interval(0.5, near(0.1, 0.6)) == (pytest.approx((0.5 - LOWER * half, 0.5 + half)), True)
    assert share_interval(0.1, near(0.1, 0.6))[0][0] == 0
    assert share_interval(0.5, near(0.4, 0.2)) == ((0.0, 1.0), False)
    assert share_interval(0.3, near(1.0, 0.2, error=0.0)) == ((0.3, 0.3), True)  # told
    assert not share_interval(0.3, near(1.0, 0.2, error=0.0, weak=True))[1]
    (first, *_) = warnings_of(0.75, (0.2, 0.85), False, 0.01, 10)
    assert first.startswith("75% were called unknown; the true share lies between 20% and 85%: answer twenty questions")
    assert warnings_of(0.4, (0.35, 0.45), True, 0.5, 100) == []


@pytest.mark.parametrize("share", [0.1, "0.4", 0.7])
def test_a_told_share_is_respected(share):
    xs, r, xt, _ = domains(3, 2, 2)
    model = estimate_target(xs, r, xt, unknown_share=share)
    assert model.share == pytest.approx(float(share), abs=0.5 / len(xt)) and model.share_known
    assert model.share_interval == (model.share, model.share)


def test_more_is_called_unknown_the_more_a_person_expects():
    rng = np.random.default_rng(0)
    xs, r, xt, _ = domains(6, 0, 4, noise=4.0)
    shares = [estimate_target(xs, r, xt, unknown_share=word).share for word in ("few", "some", "many")]
    assert shares == sorted(shares) and shares[0] < shares[2]
    with pytest.raises(UserError, match="few, some, many"):
        estimate_target(xs, r, rng.standard_normal(xt.shape), unknown_share="lots")


def test_a_large_target_is_estimated_from_a_part(monkeypatch):
    xs, r, xt, y = domains(3, 2, 2)
    monkeypatch.setattr("tllib_ext.target.model._MOST", len(xt) // 3)
    model = estimate_target(xs, r, xt)
    assert (model.labels == y).mean() > 0.95 and len(model.posterior) == len(xt)
