"""Validators against longhand computations, and the order of runs that they give."""

import math

import numpy as np
import pytest

from tllib_ext.evaluation.validators import dev_risk, mean_entropy, rank_correlation, ranks, snd


def test_entropy_and_density_are_the_definitions():
    p = np.random.RandomState(0).dirichlet(np.ones(3), 6)
    assert mean_entropy(p) == pytest.approx(-sum(v * math.log(v) for v in p.ravel()) / 6 / math.log(3))
    z, total = [row / math.sqrt(sum(row**2)) for row in p], 0.0
    for i in range(6):
        weight = [math.exp((-1 if i == j else float(z[i] @ z[j])) / 0.05) for j in range(6)]
        total -= sum(w / sum(weight) * math.log(w / sum(weight)) for w in weight) / 6
    assert snd(p) == pytest.approx(total)


def test_density_is_high_where_samples_have_many_neighbours():
    sure, vague = np.eye(3)[np.arange(60) % 3], np.random.RandomState(0).dirichlet(np.ones(3), 60)
    assert snd(sure) == pytest.approx(math.log(19), abs=1e-3) and snd(vague) < snd(sure)


def test_dev_weights_the_error_by_the_density_ratio():
    rng = np.random.RandomState(0)
    source, target = rng.randn(2000, 1), rng.randn(2000, 1) + 1
    error = (source[:, 0] > 0.5).astype(float)  # frequent in the target: P(x + 1 > 0.5) = 0.69
    assert error.mean() == pytest.approx(0.31, abs=0.03)
    assert dev_risk(source, target, error) == pytest.approx(0.69, abs=0.08)
    assert dev_risk(source, source, error) == pytest.approx(error.mean(), abs=0.02)
    assert dev_risk(np.full((5, 1), np.nan), target, error[:5]) is None


def test_ranks_follow_the_direction_and_the_correlation_its_sign():
    values = [0.1, 0.4, None, 0.2]
    assert ranks("val_snd", values)[[0, 1, 3]].tolist() == [3, 1, 2]
    assert ranks("val_dev", values)[[0, 1, 3]].tolist() == [1, 3, 2]
    assert rank_correlation(ranks("val_dev", values), [0.9, 0.1, 0.5, 0.5]) == 1
    assert rank_correlation(ranks("val_snd", values), [0.9, 0.1, 0.5, 0.5]) == -1
    assert rank_correlation(np.array([1.0, 2.0]), [0.1, 0.2]) is None
