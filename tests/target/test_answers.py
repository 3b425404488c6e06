"""Answers about target samples: longhand equations, what is asked, doubtful answers, properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.errors import UserError
from tllib_ext.methods.posterior import with_unknown
from tllib_ext.target.answers import DOUBT, NOISES, SHRINKAGE, SURPRISE, Correction, Neighbourhoods, choose
from tllib_ext.target.embedding import unit


def groups(sizes, dim=12, spread=0.25, seed=0):
    """Unit rows around one direction per group, and the group of every row."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    return unit(np.eye(dim)[y] + spread * rng.standard_normal((len(y), dim))), y


def solve(matrix, right):
    """Gauss elimination of a small system, in plain Python."""
    a = [[*map(float, row), float(b)] for row, b in zip(matrix, right)]
    n = len(a)
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(a[r][i]))
        a[i], a[pivot] = a[pivot], a[i]
        for r in range(n):
            if r != i:
                f = a[r][i] / a[i][i]
                a[r] = [x - f * y for x, y in zip(a[r], a[i])]
    return [a[i][n] / a[i][i] for i in range(n)]


def process(z_new, base_new, z, base, labels, noise, shrinkage):
    """Posterior of one sample for one setting, written out from the equation."""
    count = len(base_new)
    even = [0.5 / (count - 1)] * (count - 1) + [0.5]
    mix = lambda p: [(1 - shrinkage) * a + shrinkage * b for a, b in zip(p, even)]  # noqa: E731
    k = lambda a, b: math.exp((sum(x * y for x, y in zip(a, b)) - 1) / 0.6)  # noqa: E731
    matrix = [[k(a, b) + (noise[i] if i == j else 0) for j, b in enumerate(z)] for i, a in enumerate(z)]
    out = []
    for c in range(count):
        residual = [float(labels[i] == c) - mix(base[i])[c] for i in range(len(z))]
        weights = solve(matrix, residual)
        out.append(max(mix(base_new)[c] + sum(k(z_new, a) * w for a, w in zip(z, weights)), 0.0))
    return [x / sum(out) for x in out]


def example(seed=0, answers=6):
    rng = np.random.default_rng(seed)
    z, y = groups([5, 5, 5], dim=5, spread=0.4, seed=seed)
    base = rng.dirichlet(np.ones(3), len(z))
    return z, base, rng.permutation(len(z))[:answers], y


@pytest.mark.parametrize("confirmed", [None, [True, False, True, False, False, False]])
def test_the_correction_is_the_equation(confirmed):
    z, base, asked, y = example()
    labels = y[asked]
    model = Correction(z[asked], base[asked], labels, None if confirmed is None else np.array(confirmed), trust=True)
    logs = []
    for shrinkage in SHRINKAGE:
        for noise in NOISES:
            total = 0.0
            sigma = [NOISES[0] if confirmed and confirmed[i] else noise for i in range(len(asked))]
            for i in range(len(asked)):  # leave one out, by leaving it out
                rest = [j for j in range(len(asked)) if j != i]
                p = process(z[asked[i]], base[asked[i]], z[asked[rest]], base[asked[rest]], labels[rest],
                            [sigma[j] for j in rest], shrinkage)  # fmt: skip
                total += math.log((1 - SURPRISE) * p[labels[i]] + SURPRISE / 3)
            logs.append(total)
    weights = [math.exp(x - max(logs)) for x in logs]
    for row in range(len(z)):
        expected = [0.0] * 3
        for weight, (shrinkage, noise) in zip(weights, [(a, b) for a in SHRINKAGE for b in NOISES]):
            sigma = [NOISES[0] if confirmed and confirmed[i] else noise for i in range(len(asked))]
            p = process(z[row], base[row], z[asked], base[asked], labels, sigma, shrinkage)
            expected = [e + weight / sum(weights) * x for e, x in zip(expected, p)]
        assert model(z[row][None], base[row][None])[0] == pytest.approx(expected, abs=1e-9)


def test_neighbourhoods_are_means_of_the_nearest():
    z, _ = groups([20, 20], spread=0.6)
    near = Neighbourhoods(z, num_classes=1)
    assert near.sizes == (4, 5)
    row = z[7]
    order = sorted(range(len(z)), key=lambda j: -float(row @ z[j]))
    means = [unit(np.mean([z[j] for j in order[:size]], axis=0)) for size in near.sizes]
    assert near(row[None])[0] == pytest.approx(unit(means[0] + means[1]), abs=1e-5)


def test_a_row_depends_on_itself_and_the_target_only():
    z, _ = groups([30, 30, 30])
    near, new = Neighbourhoods(z, 2), groups([5, 5, 5], seed=1)[0]
    together = near(new)
    assert np.concatenate([near(row[None]) for row in new]) == pytest.approx(together, abs=1e-6)
    assert near(new[::-1])[::-1] == pytest.approx(together, abs=1e-6)


def test_a_large_target_has_anchors():
    z = unit(np.random.default_rng(0).standard_normal((5100, 3)))
    near = Neighbourhoods(z, 9)
    assert len(near.pool) == 5000 and near.sizes == (4, 15) and np.isfinite(near(z[:5])).all()


def test_each_group_is_asked_about_and_a_second_time_goes_on():
    z, y = groups([40, 30, 20, 20, 10, 10])
    first = choose(z, 3)
    second = choose(z, 3, first)
    assert len(set(first) | set(second)) == 6
    assert set(y[first]) | set(y[second]) == set(range(6))
    assert (choose(z, 3) == first).all()


@given(n=st.integers(1, 30), number=st.integers(0, 40), asked=st.integers(0, 30), copies=st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_as_many_different_samples_as_are_left(n, number, asked, copies):
    z = unit(np.random.default_rng(0).standard_normal((n, 4)))[np.arange(n) // copies]
    before = np.arange(min(asked, n))
    chosen = choose(z, number, before)
    assert len(set(chosen)) == len(chosen) == min(number, n - len(before)) and not set(chosen) & set(before)


def test_answers_correct_a_group_and_leave_the_others():
    z, y = groups([20, 20, 20])
    base = np.full((60, 3), 0.1)
    base[np.arange(60), np.where(y == 1, 2, y)] = 0.8  # the second group is called unknown, and is of class 1
    asked = np.array([0, 21, 22, 23, 41])
    corrected = Correction(z[asked], base[asked], y[asked], trust=True)(z, base)
    assert (corrected.argmax(1) == y).all() and corrected.sum(1) == pytest.approx(1)


def test_no_answers_change_nothing():
    z, base, _, _ = example()
    assert Correction(z[:0], base[:0], np.empty(0, dtype=int))(z, base) == pytest.approx(base, abs=0)


def wrong_answer(seed):
    z, y = groups([20] * 4, seed=seed)
    base = 0.9 * np.eye(4)[y] + 0.025
    asked = np.arange(0, 80, 4)
    labels = y[asked].copy()
    labels[7] = (labels[7] + 1) % 4
    return z, base, y, asked, labels


@pytest.mark.parametrize("seed", range(4))
def test_a_contradicting_answer_is_doubted_and_does_not_count_until_it_is_confirmed(seed):
    z, base, y, asked, labels = wrong_answer(seed)
    model = Correction(z[asked], base[asked], labels)
    assert np.flatnonzero(model.doubtful).tolist() == [7]
    rest = np.delete(np.arange(20), 7)
    without = Correction(z[asked[rest]], base[asked[rest]], labels[rest])
    assert model(z, base) == pytest.approx(without(z, base), abs=1e-12)
    confirmed = Correction(z[asked], base[asked], labels, np.arange(20) == 7)
    assert not confirmed.doubtful.any() and confirmed(z, base)[asked[7], labels[7]] > model(z, base)[asked[7], labels[7]]
    trusted = Correction(z[asked], base[asked], labels, trust=True)
    assert trusted.doubtful[7] and (trusted(z, base) != model(z, base)).any()


def test_doubt_is_the_posterior_of_an_answer_by_the_others():
    z, base, _, asked, labels = wrong_answer(0)
    model, i = Correction(z[asked], base[asked], labels, trust=True), 7
    rest = np.delete(np.arange(20), i)
    by_others = np.zeros(4)
    for weight, (shrinkage, noise) in zip(model.weights, model.settings):
        p = process(z[asked[i]], base[asked[i]], z[asked[rest]], base[asked[rest]], labels[rest], [noise] * 19, shrinkage)
        by_others += weight * np.array(p)
    assert by_others[labels[i]] < DOUBT[0] and np.delete(by_others, labels[i]).max() > DOUBT[1]


def test_wrong_answers_raise_the_noise():
    z, _, y, asked, _ = wrong_answer(0)
    even, wrong = np.full((20, 4), 0.25), y[asked].copy()
    wrong[::4] = (wrong[::4] + 1) % 4
    right = Correction(z[asked], even, y[asked], trust=True)
    assert Correction(z[asked], even, wrong, trust=True).noise > 2 * right.noise


@given(st.integers(0, 1000), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_rows_are_probabilities_and_the_order_of_answers_does_not_matter(seed, number):
    z, base, asked, _ = example(seed, number)
    labels = np.random.default_rng(seed).integers(0, 3, number)
    corrected = Correction(z[asked], base[asked], labels)(z, base)
    assert (corrected >= 0).all() and corrected.sum(1) == pytest.approx(1)
    back = Correction(z[asked[::-1]], base[asked[::-1]], labels[::-1])(z, base)
    assert back == pytest.approx(corrected, abs=1e-8)


def test_any_prediction_becomes_a_posterior_that_decides_alike():
    rng = np.random.default_rng(0)
    probs, score = rng.dirichlet(np.ones(4), 50), rng.normal(size=50)
    for level, unknown in ((None, rng.random(50) < 0.5), ((0.3, 0.7), score > 0.3)):
        found = with_unknown(probs, score, unknown, level)
        assert found.sum(1) == pytest.approx(1) and ((found[:, -1] > 0.5) == unknown).all()
        assert (found[:, :-1].argmax(1) == probs.argmax(1)).all()
    posterior = with_unknown(probs, np.linspace(0, 1, 50), np.linspace(0, 1, 50) > 0.5, (0.5, 0.0))
    assert posterior[:, -1] == pytest.approx(np.linspace(0, 1, 50), abs=0.01)


@pytest.mark.parametrize(
    "labels, words", [([0, 1], "one answer per sample"), ([0, 1, 3], "expected 0 to 2"), ([0, 1, -1], "0 to 2")]
)
def test_bad_answers_are_explained(labels, words):
    z, base, asked, _ = example(answers=3)
    with pytest.raises(UserError, match=words):
        Correction(z[asked], base[asked], np.array(labels))
