"""The steps of EM against longhand loops, and the number and ownership of components."""

import math

import numpy as np
import pytest

from tllib_ext.target.embedding import unit
from tllib_ext.target.mixture import TIE, Mixture, class_size, fit_mixture, m_step, with_share


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    z = unit(rng.standard_normal((7, 3))).astype(np.float32)
    centres = unit(rng.standard_normal((4, 3))).astype(np.float32)
    return z, centres, np.log(np.array([0.4, 0.3, 0.2, 0.1]))


def test_e_step_longhand(small):
    z, centres, log_weights = small
    found = Mixture(centres, log_weights, 0.2, np.arange(4)).posterior(z, 3)
    for i in range(len(z)):
        scores = [math.exp(sum(z[i][j] * centres[c][j] for j in range(3)) / 0.2) * math.exp(log_weights[c]) for c in range(4)]
        for c in range(4):
            assert found[i, c] == pytest.approx(scores[c] / sum(scores), rel=1e-4)


def test_m_step_longhand(small):
    z, centres, log_weights = small
    r = Mixture(centres, log_weights, 0.2, np.arange(4)).posterior(z, 3)
    prototypes = centres[:2]
    found, weights = m_step(z, r, prototypes)
    for c in range(4):
        total = [sum(r[i][c] * z[i][j] for i in range(7)) for j in range(3)]
        if c < 2:  # tied
            total = [total[j] + TIE * 7 / 4 * prototypes[c][j] for j in range(3)]
        length = math.sqrt(sum(x * x for x in total))
        assert found[c] == pytest.approx([x / length for x in total], abs=1e-5)
        assert weights[c] == pytest.approx(math.log((sum(r[i][c] for i in range(7)) + 0.5) / (7 + 2)), abs=1e-5)


def test_a_class_that_is_not_there_keeps_its_prototype(small):
    z, centres, _ = small
    r = np.zeros((7, 4), dtype=np.float32)
    r[:, 1] = 1
    found, _ = m_step(z, r, centres[:2])
    assert found[0] == pytest.approx(centres[0], abs=1e-6)


def test_posterior_sums_components_by_owner(small):
    z, centres, log_weights = small
    mixture = Mixture(centres, log_weights, 0.2, np.array([0, 1, 2, 1]))
    r = Mixture(centres, log_weights, 0.2, np.arange(4)).posterior(z, 3)
    assert mixture.posterior(z, 2) == pytest.approx(np.stack([r[:, 0], r[:, 1] + r[:, 3], r[:, 2]], axis=1), abs=1e-6)


def test_class_size_ignores_absent_classes():
    assert class_size(np.repeat(np.arange(4), [30, 30, 1, 60]), 3) == 30


def test_nothing_rejected_has_no_free_component(small):
    z, centres, _ = small
    assert len(fit_mixture(z, np.zeros(7, dtype=np.int64), centres[:2]).centres) == 2


def test_unknown_groups_are_as_large_as_known_classes():
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(5, 8), 40, axis=0)
    z = unit(centres + 0.05 * rng.standard_normal(centres.shape)).astype(np.float32)
    true = np.minimum(np.repeat(np.arange(5), 40), 2)
    start = np.where(rng.random(200) < 0.2, (true + 1) % 3, true)
    mixture = fit_mixture(z, start, np.eye(2, 8))
    assert len(mixture.centres) in (4, 5) and (mixture.posterior(z, 2).argmax(1) == true).mean() > 0.97


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.8, 1.0])
def test_a_told_share_is_respected(share):
    rng = np.random.default_rng(3)
    z = unit(rng.standard_normal((120, 6))).astype(np.float32)
    mixture = fit_mixture(z, rng.integers(0, 4, 120), unit(rng.standard_normal((3, 6))))
    posterior = with_share(mixture, z, 3, share, share).posterior(z, 3)
    assert (posterior[:, 3] > 0.5).mean() == pytest.approx(share, abs=1e-9) and posterior.sum(1) == pytest.approx(1, abs=1e-5)
    assert with_share(mixture, z, 3, 0.0, 1.0) is mixture
    before = mixture.posterior(z, 3)[:, :3]
    ratio = posterior[:, :3] / posterior[:, :3].sum(1, keepdims=True) - before / before.sum(1, keepdims=True)
    assert np.nan_to_num(ratio) == pytest.approx(0, abs=1e-3)  # classes among each other stay as they are
