"""The two groups of the best cosine: recovery, closed label sets, and the local mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.target.cosines import expected_maximum, fit_two_groups, local_means, resultant_start, soft_labels
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
