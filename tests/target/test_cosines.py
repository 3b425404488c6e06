"""The two groups of the best cosine: recovery, closed label sets, and the local mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.target.cosines import _SETTINGS, expected_maximum, fit_two_groups, local_means, resultant_start, soft_labels
from tllib_ext.target.embedding import unit


def cosines(known, unknown, classes=8, level=0.6, noise=0.08, seed=0):
    rng = np.random.default_rng(seed)
    c = noise * rng.standard_normal((known + unknown, classes))
    c[np.arange(known), rng.integers(0, classes, known)] += level
    return c


def test_expected_maximum_by_simulation():
    draws = np.random.default_rng(0).standard_normal((200_000, 5)).max(1).mean()
    assert expected_maximum(5) == pytest.approx(draws, abs=0.01)


@pytest.mark.parametrize("known, unknown", [(300, 200), (100, 400), (450, 50)])
def test_share_is_recovered(known, unknown):
    fit = fit_two_groups(cosines(known, unknown))
    assert 1 - fit.known.mean() == pytest.approx(unknown / (known + unknown), abs=0.03)
    assert (fit.known[:known] > 0.5).mean() > 0.99 and (fit.known[known:] < 0.5).mean() > 0.98


def test_nothing_unknown_is_recognised():
    assert (fit_two_groups(cosines(500, 0)).known > 0.5).mean() > 0.99


def test_known_is_monotone_above_the_unknown():
    c = cosines(100, 100)
    fit = fit_two_groups(c)
    best = c.max(1)
    order = np.argsort(best)
    above = best[order] > fit.unknown_mean
    assert (np.diff(fit.known[order][above]) >= -1e-9).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(2, 40), st.integers(0, 1000))
def test_posteriors_are_probabilities(classes, number, seed):
    rng = np.random.default_rng(seed)
    z, p = unit(rng.standard_normal((number, 5))), unit(rng.standard_normal((classes, 5)))
    soft, _ = soft_labels(local_means(z) @ p.T)
    assert np.isfinite(soft).all() and (soft >= 0).all()
    assert soft.sum(1) == pytest.approx(1)


def test_start_lies_within_the_cosines():
    assert 0.5 < resultant_start(cosines(200, 200).max(1)) < 0.75


def test_local_means_longhand():
    z = unit(np.random.default_rng(1).standard_normal((30, 4)))
    found = local_means(z, neighbours=5, chunk=7)
    for i in range(30):
        near = sorted(range(30), key=lambda j: -(z[i] @ z[j]))[:5]
        assert found[i] == pytest.approx(unit(z[near].mean(0)[None])[0])


def test_local_means_with_fewer_rows_than_neighbours():
    z = unit(np.random.default_rng(1).standard_normal((3, 4)))
    assert local_means(z, neighbours=15).shape == (3, 4)


def _with_a_far_class(unknown: int):
    """The best cosines of five classes are around 0.4, those of a sixth around 0.24, those of the ``unknown`` around 0.12."""
    rng = np.random.default_rng(0)
    best = np.concatenate([rng.normal(0.4, 0.05, 500), rng.normal(0.24, 0.05, 100), rng.normal(0.12, 0.03, unknown)])
    nearest = np.concatenate([np.repeat(np.arange(6), 100), rng.integers(0, 5, unknown)])
    c = np.minimum(rng.normal(0, 0.1, (len(best), 6)), best[:, None] - 0.01)
    c[np.arange(len(best)), nearest] = best
    return c


def test_a_class_far_from_its_prototype_is_known_beside_unknown_samples():
    c = _with_a_far_class(600)
    together, apart = (
        np.mean([fit_two_groups(c, *setting, per_class=per_class).known for setting in _SETTINGS], axis=0)
        for per_class in (False, True)
    )
    soft, _ = soft_labels(c, blurred=True)
    assert soft[:, -1] == pytest.approx(1 - (0.4 * together + 0.6 * apart))
    assert together[500:600].mean() < 0.4 and apart[500:600].mean() > 0.8 and soft[500:600, 5].mean() > 0.5
    assert soft[:500, -1].mean() < 0.1 and soft[600:, -1].mean() > 0.9


def test_otherwise_classes_are_fitted_together():
    for unknown, blurred in ((0, True), (600, False)):  # nothing holds the place of the unknown; prototypes are sharp
        soft, fits = soft_labels(_with_a_far_class(unknown), blurred)
        assert soft[:, -1] == pytest.approx(1 - np.mean([fit.known for fit in fits], axis=0))
