"""The graph of neighbours, the resemblance to known classes, and the share of unknown under a prior, against longhand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.errors import UserError
from tllib_ext.target.embedding import unit
from tllib_ext.target.graph import (
    AMBIGUITY,
    POWERS,
    Graph,
    Prior,
    best_border,
    expected_maximum,
    prior_on_share,
    resemblance,
    share_by_power,
)


def target(known, unknown, classes=5, noise=0.05, seed=0):
    """Unit rows near ``classes`` orthogonal prototypes, then rows near directions of no class."""
    rng = np.random.default_rng(seed)
    prototypes = np.eye(classes, 40)
    centres = np.concatenate([prototypes[rng.integers(0, classes, known)], np.eye(40)[20 + rng.integers(0, 6, unknown)]])
    return unit(centres + noise * rng.standard_normal(centres.shape)), prototypes


def test_expected_maximum_by_simulation():
    draws = np.random.default_rng(0).standard_normal((200_000, 5)).max(1).mean()
    assert expected_maximum(5) == pytest.approx(draws, abs=0.01)


def test_a_graph_averages_over_the_nearest_rows_of_which_a_row_is_one():
    z = unit(np.random.default_rng(1).standard_normal((30, 4)))
    values = np.random.default_rng(2).standard_normal((30, 3))
    average = Graph(z, neighbours=5)
    for i in range(30):
        near = sorted(range(30), key=lambda j: -(z[i] @ z[j]))[:5]
        assert i in near
        assert average(values)[i] == pytest.approx(sum(values[j] for j in near) / 5)
    assert average(values[:, 0]) == pytest.approx(average(values)[:, 0])
    assert Graph(z[:3], neighbours=7)(values[:3]) == pytest.approx(np.tile(values[:3].mean(0), (3, 1)))


def test_resemblance_longhand():
    z, prototypes = target(20, 10, noise=0.3)
    index = [sorted(range(30), key=lambda j: -(z[i] @ z[j]))[:7] for i in range(30)]

    def mean(rows):
        return [sum(rows[j] for j in near) / 7 for near in index]

    cosines = [unit(row[None])[0] @ prototypes.T for row in mean(mean(list(z)))]
    soft = [np.exp(row @ prototypes.T / 0.1) / np.exp(row @ prototypes.T / 0.1).sum() for row in z]
    found = resemblance(z, prototypes)
    assert found.value == pytest.approx(mean([row.max() for row in cosines]))
    assert found.nearest.tolist() == [int(row.argmax()) for row in mean(soft)]
    others = [value for row in cosines for value in sorted(row)[:-1]]
    assert found.spread == pytest.approx(np.std(others)) and found.null == pytest.approx(found.spread * expected_maximum(5))


def test_one_round_of_the_share_longhand(monkeypatch):
    monkeypatch.setattr("tllib_ext.target.graph._ROUNDS", 1)
    value, null, spread, power = np.array([0.1, 0.2, 0.4, 0.9]), 0.15, 0.1, 2.0
    length, posterior = 0.9 - 0.15, []
    for s in value:
        unknown = math.exp(-((max(s - null, 0) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
        known = (3 * max((s - null) / length, 0) ** 2 + 0.02) / length
        posterior.append(0.5 * unknown / (0.5 * unknown + 0.5 * known))
    found = share_by_power(value, null, spread, power)
    assert found == pytest.approx((np.mean(posterior), np.mean([min(p, 1 - p) for p in posterior])))


@pytest.mark.parametrize("known, unknown", [(300, 200), (120, 280), (400, 40), (300, 0)])
def test_the_share_is_recovered_where_known_and_unknown_are_apart(known, unknown):
    z, prototypes = target(known, unknown)
    found = resemblance(z, prototypes)
    assert found.shares == pytest.approx([unknown / (known + unknown)] * 3, abs=0.03)
    assert all(a <= b + 1e-9 for a, b in zip(found.shares, found.shares[1:]))  # a steeper density leaves more to unknown


def test_evidence_and_prior_weigh_by_their_errors_and_the_border_parts_best():
    z, prototypes = target(200, 100, noise=0.2)
    told, weak = (resemblance(z, prototypes, prior) for prior in (Prior(0.25, 0.0), Prior()))
    ambiguity = max(share_by_power(weak.value, weak.null, weak.spread, power)[1] for power in POWERS)
    evidence = 1 / weak.evidence_error**2
    assert weak.evidence_error == pytest.approx(math.hypot(AMBIGUITY * ambiguity, np.ptp(weak.shares)))
    mean, half = (np.mean(weak.shares) * evidence + 16 / 3) / (evidence + 16), 0.5 / math.sqrt(evidence + 16)
    assert weak.error == pytest.approx(2 * half) and told.error == 0
    assert weak.share == best_border(weak.value, mean - half, mean + half)
    assert told.share == 0.25 and (told.labels(5) == 5).sum() == 75
    assert told.value[told.labels(5) == 5].max() <= told.value[told.labels(5) < 5].min()


def test_the_best_border_longhand():
    value = np.random.default_rng(0).normal(size=50)
    ordered = np.sort(value)
    variance = {m: m * (50 - m) * (ordered[m:].mean() - ordered[:m].mean()) ** 2 for m in range(10, 31)}
    assert best_border(value, 0.2, 0.6) == max(variance, key=lambda m: variance[m]) / 50
    assert best_border(value, 0.0, 0.0) == 0.0 and best_border(value[:1], -0.3, 0.2) == 0.0


def test_what_a_person_says_of_the_share():
    assert prior_on_share(None) == Prior() and prior_on_share(0.4) == prior_on_share("0.4") == Prior(0.4, 0.0)
    assert prior_on_share("few").mean < prior_on_share("some").mean < prior_on_share("many").mean
    for wrong in ("lots", 1.2, -0.1, math.nan):
        with pytest.raises(UserError, match="few, some, many"):
            prior_on_share(wrong)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 1000))
def test_any_target_has_shares_and_classes(classes, number, seed):
    rng = np.random.default_rng(seed)
    found = resemblance(unit(rng.standard_normal((number, 5))), unit(rng.standard_normal((classes, 5))))
    assert all(0 <= share <= 1 for share in (*found.shares, found.share))
    assert np.isfinite(found.value).all() and set(found.labels(classes)) <= set(range(classes + 1))
