"""The steps of EM against longhand loops, and the number and ownership of components."""

import math

import numpy as np
import pytest

from tllib_ext.target.embedding import unit
from tllib_ext.target.mixture import PULL, TIE, Mixture, fit_mixtures, m_step, nearest_prototype, number_of_groups, owners


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    z = unit(rng.standard_normal((7, 3))).astype(np.float32)
    centres = unit(rng.standard_normal((4, 3))).astype(np.float32)
    return z, centres, np.log(np.array([0.4, 0.3, 0.2, 0.1]))


def test_e_step_longhand(small):
    z, centres, log_weights = small
    found = Mixture(centres, log_weights, 0.2, np.arange(4)).responsibilities(z)
    for i in range(len(z)):
        scores = [math.exp(sum(z[i][j] * centres[c][j] for j in range(3)) / 0.2) * math.exp(log_weights[c]) for c in range(4)]
        for c in range(4):
            assert found[i, c] == pytest.approx(scores[c] / sum(scores), rel=1e-4)


def test_m_step_longhand(small):
    z, centres, log_weights = small
    r = Mixture(centres, log_weights, 0.2, np.arange(4)).responsibilities(z)
    prototypes = centres[:2]
    found, weights = m_step(z, r, prototypes)
    for c in range(4):
        total = [sum(r[i][c] * z[i][j] for i in range(7)) for j in range(3)]
        length = math.sqrt(sum(x * x for x in total))
        if c < 2:  # tied
            total = [total[j] + (TIE * 7 / 4 + PULL * length) * prototypes[c][j] for j in range(3)]
        length = math.sqrt(sum(x * x for x in total))
        assert found[c] == pytest.approx([x / length for x in total], abs=1e-5)
        assert weights[c] == pytest.approx(math.log((sum(r[i][c] for i in range(7)) + 0.5) / (7 + 2)), abs=1e-5)


def test_a_class_that_is_not_there_keeps_its_prototype(small):
    z, centres, _ = small
    r = np.zeros((7, 4), dtype=np.float32)
    r[:, 1] = 1
    found, _ = m_step(z, r, centres[:2])
    assert found[0] == pytest.approx(centres[0], abs=1e-6)


def test_free_components_join_the_class_that_their_soft_labels_name():
    r = np.eye(4)
    soft = np.array([[1, 0, 0], [0, 1, 0], [0.1, 0.5, 0.4], [0.2, 0.2, 0.6]])
    assert owners(r, soft).tolist() == [0, 1, 1, 2]


def test_posterior_sums_components_by_owner(small):
    z, centres, log_weights = small
    mixture = Mixture(centres, log_weights, 0.2, np.array([0, 1, 2, 1]))
    r = mixture.responsibilities(z)
    assert mixture.posterior(z, 2) == pytest.approx(np.stack([r[:, 0], r[:, 1] + r[:, 3], r[:, 2]], axis=1), abs=1e-6)


def test_number_of_groups_ignores_absent_classes():
    soft = np.repeat(np.eye(4), [30, 30, 1, 60], axis=0)
    assert number_of_groups(soft) == 2.0


def test_nothing_rejected_has_no_free_component(small):
    z, centres, _ = small
    soft = np.zeros((7, 3))
    soft[:, 0] = 1
    assert all(len(m.centres) == 2 for m in fit_mixtures(z, soft, centres[:2]))


def test_nearest_prototype_rejects_the_given_share_by_one_border():
    rng = np.random.default_rng(1)
    z, prototypes = unit(rng.standard_normal((300, 6))), unit(rng.standard_normal((4, 6)))
    posterior = nearest_prototype(z, prototypes, 0.25).posterior(z, 4)
    t = 0.04
    score = np.array([math.log(sum(math.exp(float(row @ p) / t) for p in prototypes)) for row in z])
    assert ((posterior[:, 4] > 0.5) == (score < np.quantile(score, 0.25))).all()
    assert (posterior[:, :4].argmax(1) == (z @ prototypes.T).argmax(1)).all()
