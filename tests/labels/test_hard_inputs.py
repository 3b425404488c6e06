"""Inputs that are hard to judge: the interval covers the truth or is said to be unknown, and correction does no harm."""

import numpy as np
import pytest

from tllib_ext import estimate_labels, find_label_issues
from tllib_ext.errors import UserError
from tllib_ext.labels.duplicates import distinct_samples
from tllib_ext.labels.initialisation import renamed_rates
from tllib_ext.labels.uncertainty import keep_labels_of, rate_bounds, unnamed_classes


def classes(sizes, spread, seed, dim=32):
    """Gaussian classes around random means, far from the origin."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(len(sizes)), sizes)
    means = rng.standard_normal((len(sizes), dim))
    shift = spread * rng.standard_normal((len(true), dim)) + 3 * rng.standard_normal(dim)
    return (means[true] + shift).astype(np.float32), true


def wrong_at(rate, true, seed):
    """Symmetric noise."""
    rng, k = np.random.default_rng(1000 + seed), true.max() + 1
    flipped = rng.random(len(true)) < rate
    return np.where(flipped, (true + rng.integers(1, k, size=len(true))) % k, true)


def judge(model, given, true):
    """Change of the share of right labels; the rest of the contract is asserted."""
    wrong, (low, high) = np.mean(given != true), model.rate_interval
    assert not model.rate_known or low <= wrong <= high
    assert all(np.isfinite(part).all() for part in (model.responsibilities, model.out_of_sample, model.transition))
    assert np.isfinite([model.rate, model.rate_std, low, high]).all() and 0 <= low <= high <= 1
    np.testing.assert_allclose(model.responsibilities.sum(1), 1, atol=1e-4)
    assert model.summary()
    return (np.count_nonzero(model.corrected == true) - np.count_nonzero(given == true)) / len(true)


HARD = {
    "two classes": ([60, 60], 1.0, 0.2),
    "two classes that overlap": ([60, 60], 4.0, 0.2),
    "a class of one sample": ([30, 30, 30, 1], 1.0, 0.2),
    "only classes of one sample": ([1] * 12, 1.0, 0.0),
    "1000 to 3": ([1000, 3], 1.0, 0.1),
    "70 % wrong": ([50] * 10, 1.0, 0.7),
    "five weak classes": ([40] * 5, 4.0, 0.3),
}


@pytest.mark.parametrize("name", HARD)
def test_the_interval_covers_or_is_unknown_and_correction_does_no_harm(name):
    sizes, spread, rate = HARD[name]
    x, true = classes(sizes, spread, 0)
    given = wrong_at(rate, true, 0)
    assert judge(estimate_labels(x, given, len(sizes)), given, true) >= 0


@pytest.mark.parametrize("rate", [0.2, 0.4])
def test_a_long_tail_does_not_shift_the_names_of_the_classes(rate):
    sizes = (200 * 0.02 ** (np.arange(10) / 9)).astype(int)  # 200 to 4: the rare classes have no room in a model of ten
    for seed in range(2):
        x, true = classes(sizes, 0.8, seed, dim=20)
        flipped = np.random.default_rng(seed).random(len(true)) < rate
        given = np.where(flipped, (true + 1) % 10, true)
        model = estimate_labels(x, given, 10)
        assert judge(model, given, true) >= -0.005
        assert ("keeps its labels" in model.summary()) == bool(model.unnamed)


def test_clean_classes_in_a_plane_stay_although_their_directions_coincide():
    rng = np.random.default_rng(0)
    true = np.repeat(np.arange(9), 60)
    x = np.stack([true % 3, true // 3], 1) * 6.0 + rng.standard_normal((len(true), 2))  # prototypes see directions only
    for given in (true, wrong_at(0.3, true, 0)):
        assert judge(estimate_labels(x, given, 9), given, true) >= 0


def test_a_name_is_kept_by_chance_and_lost_by_evidence():
    even, torn = np.full((4, 4), 1.0), np.full((4, 4), 1.0)
    np.fill_diagonal(even, 20.0)
    even[:2, 3] = 24.0  # as of a rate of one half
    np.fill_diagonal(torn, 30.0)
    torn[0] = [5.0, 30.0, 1.0, 1.0]
    torn[2, 2:] = 16.0, 14.0  # ahead by chance
    assert not unnamed_classes(even).any() and unnamed_classes(torn).tolist() == [True, False, True, False]
    r = np.array([[0.9, 0.1, 0.0, 0.0], [0.0, 0.2, 0.8, 0.0], [0.3, 0.0, 0.0, 0.7]])
    kept, moved = keep_labels_of(np.array([True, False, True, False]), r, r, np.array([1, 2, 3]))
    np.testing.assert_allclose(kept.sum(1), 1, atol=1e-6)
    assert kept.argmax(1).tolist() == [1, 2, 3] and moved == pytest.approx((0.9 + 0.0 + 0.3) / 3)


def test_noise_is_not_found_where_overlap_explains_the_labels():
    change = []
    for seed in (2, 5):  # EM predicts hidden labels better than the given labels' prototypes here, by 13 and 9 nats
        x, true = classes([120] * 5, 5.0, seed)
        given = wrong_at(0.2, true, seed)
        change.append(judge(estimate_labels(x, given, 5), given, true))
    assert np.mean(change) >= 0 and min(change) >= -0.02


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [[30] * 4, [300, 3]])
def test_constant_features_tell_nothing(value, sizes):
    true = np.repeat(np.arange(len(sizes)), sizes)
    model = estimate_labels(np.full((len(true), 8), value), true, len(sizes))
    assert judge(model, true, true) == 0 and model.rate_known == (len(sizes) == 2)  # three labels are at most as many wrong ones
    found = find_label_issues(np.full((len(true), 8), value), true)
    assert (found.corrected == true).all() and (found.suggested == true)[: sizes[0]].all()


def test_fewer_samples_than_classes():
    x, true = classes([3, 3, 2], 0.5, 2)
    given = wrong_at(0.2, true, 2)
    model = estimate_labels(x, given, 20)
    assert (given != true).any() and judge(model, given, true) == 0
    assert rate_bounds(np.eye(2), np.zeros(2), 0.0) == ((0.0, 1.0), False)
    assert rate_bounds(np.eye(2)[[0] * 300], np.zeros(300), 0.0) == ((0.0, 0.01), True)


def test_copies_do_not_confirm_their_own_labels():
    x, true = classes([25] * 6, 1.0, 1)
    given = wrong_at(0.2, true, 1)
    repeat = np.tile(np.arange(150), 4)
    model, once = estimate_labels(x[repeat], given[repeat], 6), estimate_labels(x, given, 6)
    assert judge(model, given[repeat], true[repeat]) > 0.15
    np.testing.assert_array_equal(model.corrected, once.corrected[repeat])
    assert model.rate == pytest.approx(once.rate)
    again = estimate_labels(x[repeat], given[repeat], 6, previous=model)
    assert len(again.corrected) == 600
    found = find_label_issues(x[repeat], given[repeat])
    assert found.suspicion[:150][given != true].min() > 0 and found.pred_probs.shape == (600, 6)


def test_equal_features_with_labels_of_their_own_all_count():
    x, true = classes([25] * 6, 1.0, 1)
    twice = np.tile(np.arange(150), 2)
    assert len(distinct_samples(x[twice], wrong_at(0.2, true[twice], 0))[0]) == 300
    kept, place = distinct_samples(x[twice], true[twice])
    assert len(kept) == 150 and (true[kept][place[:150]] == true).all()


def test_near_one_half_the_interval_covers_both_directions_of_the_cycle():
    counts = 100 * np.array([[0.52, 0.48, 0], [0, 0.52, 0.48], [0.48, 0, 0.52]])
    assert renamed_rates(counts) == pytest.approx([0.52] * 4)
    wrong = np.tile([0.0, 1.0], 50) * 0.96
    assert rate_bounds(np.eye(2)[[0, 1] * 50], wrong, 0.0, renamed_rates(counts))[0] == pytest.approx((0.48, 0.52))
    assert renamed_rates(80 * np.eye(20) + 20 * np.roll(np.eye(20), 1, axis=1)) == []  # one of 20 classes moves the rate little


def test_no_label_is_changed_where_both_directions_of_the_cycle_are_equally_good():
    x, true = classes([60] * 10, 1.0, 1)
    for right, changed in ((0.5, False), (0.55, True)):
        given = np.where(np.arange(600) % 60 < 60 * right, true, (true + 1) % 10)
        model = estimate_labels(x, given, 10)
        low, high = model.rate_interval
        assert low <= 1 - right <= high
        if changed:
            assert (model.corrected == true).mean() > 0.95
        else:
            assert (model.corrected == given).all() and not model.rate_known


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_rows_that_are_not_finite_are_an_error(bad):
    x, true = classes([5, 5], 1.0, 0)
    x = x.astype(np.float64)
    x[3, 2] = bad
    for call in (lambda: estimate_labels(x, true, 2), lambda: find_label_issues(x, np.array(["a", "b"])[true])):
        with pytest.raises(UserError, match="1 of 10 feature rows are not finite"):
            call()


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float16])
def test_features_of_any_number_type(kind):
    x, true = classes([12] * 3, 1.0, 0)
    x, given = np.clip(10 * x + 128, 0, 255).astype(kind), wrong_at(0.2, true, 0)
    found, plain = (find_label_issues(features, given) for features in (x, x.astype(np.float32)))
    np.testing.assert_array_equal(found.suspicion, plain.suspicion)
    np.testing.assert_array_equal(found.kind, plain.kind)
    with pytest.raises(UserError, match="features are <U1: expected numbers"):
        find_label_issues(np.full((36, 2), "a"), given)
