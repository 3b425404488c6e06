"""The label model on data whose truth is known: recovery, caution with clean labels, invariances, bad input."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.errors import UserError
from tllib_ext.labels import LabelModel, estimate_labels
from tllib_ext.labels.em import STRUCTURES, em_steps, expected_counts, transition_from_counts
from tllib_ext.labels.embedding import principal_axes
from tllib_ext.labels.initialisation import match_clusters

FEATURES = Path(__file__).resolve().parents[3] / "shared" / "data" / "office31_resnet50"


def pair(k, rate):
    return (1 - rate) * np.eye(k) + rate * np.roll(np.eye(k), 1, 1)


def symmetric(k, rate):
    return np.where(np.eye(k, dtype=bool), 1 - rate, rate / (k - 1))


def flip(true, matrix, seed):
    draw = np.random.RandomState(seed)
    return np.array([draw.multinomial(1, matrix[k]).argmax() for k in true])


def blobs(sizes, seed=0, dim=64, spread=0.5, modes=1):
    """Rectified Gaussian clusters with shared nuisance directions, as backbone features are."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.standard_normal((len(sizes), modes, dim))
    nuisance = rng.standard_normal((len(true), 5)) @ rng.standard_normal((5, dim))
    x = centres[true, rng.integers(modes, size=len(true))] + 0.3 * nuisance
    x = x + spread * rng.standard_normal((len(true), dim))
    return np.maximum(x + 1, 0).astype(np.float32), true


@pytest.mark.parametrize("make", [pair, symmetric])
@pytest.mark.parametrize("rate", [0.2, 0.45])
def test_recovers_a_known_matrix(make, rate):
    features, true = blobs([60] * 10)
    matrix = make(10, rate)
    noisy = flip(true, matrix, 0)
    model = estimate_labels(features, noisy, 10)
    assert (model.corrected == true).mean() >= 0.97
    assert abs(model.rate - (noisy != true).mean()) <= 0.02
    if make is pair:  # few cells per class: the frequencies of this draw are found, not only the matrix behind it
        matrix = np.stack([np.bincount(noisy[true == k], minlength=10) for k in range(10)]) / 60
    assert np.abs(model.transition - matrix).max() <= 0.05
    assert 0 < model.rate_std < 0.05
    np.testing.assert_allclose(model.transition.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(model.responsibilities.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_clean_labels_stay(spread):
    """Also where features hardly tell the classes apart: without evidence of noise labels are kept."""
    features, true = blobs([40] * 12, spread=spread)
    model = estimate_labels(features, true, 12)
    # Where they do not, hidden noise cannot be excluded either, and the model says so.
    assert model.rate <= 0.01 if model.rate_known else spread == 3.0
    assert model.rate_interval[0] == 0
    assert (model.corrected == true).mean() >= 0.995


def test_classes_of_several_kinds_and_sizes():
    features, true = blobs([200, 120, 60, 30, 20, 12, 8, 8, 40], modes=2)
    noisy = flip(true, pair(9, 0.2), 1)
    model = estimate_labels(features, noisy, 9)
    assert (model.corrected == true).mean() >= 0.95
    assert abs(model.rate - (noisy != true).mean()) <= 0.03


def test_many_small_classes():
    features, true = blobs([8] * 65, dim=256)
    noisy = flip(true, symmetric(65, 0.2), 0)
    model = estimate_labels(features, noisy, 65)
    assert (model.corrected == true).mean() >= 0.95


def test_more_samples_than_the_search_sees():
    features, true = blobs([500] * 6)
    noisy = flip(true, pair(6, 0.3), 0)
    model = estimate_labels(features, noisy, 6, limit=600)
    assert (model.corrected == true).mean() >= 0.97
    assert abs(model.rate - (noisy != true).mean()) <= 0.02


def test_same_seed_same_model_and_order_does_not_matter():
    features, true = blobs([25] * 8, spread=0.8)
    noisy = flip(true, pair(8, 0.3), 0)
    first, second = (estimate_labels(features, noisy, 8, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.responsibilities, second.responsibilities)
    order = np.random.default_rng(0).permutation(len(true))
    moved = estimate_labels(features[order], noisy[order], 8, seed=3)
    np.testing.assert_array_equal(moved.corrected, first.corrected[order])
    np.testing.assert_allclose(moved.responsibilities, first.responsibilities[order], atol=1e-2)


def test_tensors_scale_and_types_do_not_matter():
    features, true = blobs([20] * 5)
    noisy = flip(true, symmetric(5, 0.2), 0)
    plain = estimate_labels(features, noisy, 5)
    tensor = estimate_labels(torch.tensor(features * 8.0, requires_grad=True), torch.tensor(noisy), 5)
    np.testing.assert_array_equal(plain.corrected, tensor.corrected)


def test_warm_start_keeps_what_was_found():
    features, true = blobs([40] * 10)
    noisy = flip(true, pair(10, 0.45), 0)
    cold = estimate_labels(features, noisy, 10)
    noise = 0.02 * np.random.default_rng(0).standard_normal(features.shape)
    warm = estimate_labels(features + noise, noisy, 10, previous=cold)
    assert warm.start == "previous" and warm.structure == cold.structure
    assert (warm.corrected == true).mean() >= 0.97
    with pytest.raises(UserError, match="call without previous"):
        estimate_labels(features[:100], noisy[:100], 10, previous=cold)


def test_class_without_samples_and_single_class():
    features, true = blobs([30] * 6)
    noisy = flip(true, symmetric(6, 0.2), 0)
    keep = noisy != 2
    model = estimate_labels(features[keep], noisy[keep], 7)
    assert model.responsibilities.shape == (keep.sum(), 7)
    assert not model.responsibilities[:, [2, 6]].any()
    np.testing.assert_array_equal(model.transition[6], np.eye(7)[6])
    alone = estimate_labels(features[:5], np.full(5, 3), 7)
    assert alone.rate == 0 and (alone.corrected == 3).all() and "cannot be told" in alone.summary()


def test_the_summary_names_the_classes_of_the_most_frequent_flip():
    features, true = blobs([40] * 3)
    noisy = np.where((true == 0) & (np.arange(len(true)) % 4 == 0), 1, true)
    model = estimate_labels(features, noisy, 3)
    assert "ant -> bee (" in model.summary(["ant", "bee", "cat"]) and "0 -> 1 (" in model.summary()


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_never_breaks_on_tiny_data(classes, size, seed):
    rng = np.random.default_rng(seed)
    features = np.maximum(rng.standard_normal((classes * size, 6)), 0)  # rows of zeros happen
    labels = rng.integers(classes, size=classes * size)
    model = estimate_labels(features, labels, classes, seed)
    assert np.isfinite(model.responsibilities).all() and np.isfinite(model.transition).all()
    assert 0 <= model.rate <= 1 and (model.confidence > 0).all()


@pytest.mark.parametrize(
    "features, labels, message",
    [
        (np.ones((3, 2)), [0, 1, 5], r"labels run from 0 to 5: expected 0\.\.2"),
        (np.ones((3, 2)), [0, -1, 1], "labels run from -1"),
        (np.ones((3, 2)), [0.0, 1.0, 1.0], "expected integers"),
        (np.ones((3, 2)), [0, 1], r"expected \(N, D\) and \(N,\)"),
        (np.ones((0, 2)), np.zeros(0, dtype=int), "N > 0"),
        (np.array([[1.0, np.nan], [1, 2], [np.inf, 0]]), [0, 1, 1], "2 of 3 feature rows are not finite"),
    ],
)
def test_bad_input_is_one_line(features, labels, message):
    with pytest.raises(UserError, match=message) as caught:
        estimate_labels(features, np.asarray(labels), 3)
    assert "\n" not in str(caught.value)


def test_one_round_longhand():
    """Prototypes, counts and likelihood without each sample, by loops."""
    rng = np.random.default_rng(0)
    g = rng.standard_normal((9, 4)).astype(np.float32)
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    y, bounds = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2]), np.array([0, 3, 6, 9])
    r = rng.dirichlet(np.ones(3), 9).astype(np.float32)
    one = next(em_steps(g, y, bounds, r, STRUCTURES["free"], 1, temperature=0.2))
    total, expected = 0.0, np.zeros((9, 3))
    full = expected_counts(r, bounds)
    right = (np.trace(full) + 0.5) / (full.sum() + 1)
    pooled = np.where(np.eye(3, dtype=bool), right, (1 - right) / 2)
    for i in range(9):
        others = [j for j in range(9) if j != i]
        cosine = np.zeros(3)
        label = np.zeros(3)
        for k in range(3):
            mu = sum(r[j, k] * g[j] for j in others)
            cosine[k] = g[i] @ mu / np.linalg.norm(mu)
            row = full[k].copy()
            row[y[i]] -= r[i, k]
            taken = np.minimum(row, 0.5) * (np.arange(3) != k)
            label[k] = (row[y[i]] - taken[y[i]] + (taken.sum() + 0.5) * pooled[k, y[i]]) / (row.sum() + 0.5)
        p = np.exp(cosine / one.temperature)
        p /= p.sum()
        total += np.log((p * label).sum())
        expected[i] = p * label / (p * label).sum()
    assert one.log_likelihood == pytest.approx(total, rel=1e-4)
    np.testing.assert_allclose(one.responsibilities, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["shared", "sparse", "free", "similar", "mixed"])
def test_hidden_labels_are_scored_and_take_no_part(name):
    """A round with hidden labels, by loops: what is hidden changes its own score and nothing else."""
    rng, (structure, n, classes) = np.random.default_rng(1), (STRUCTURES[name], 15, 3)
    g = rng.standard_normal((n, 4)).astype(np.float32)
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    y, bounds = np.repeat(np.arange(3), 5), np.array([0, 5, 10, 15])
    seen = np.arange(n) % 5 != 2
    r = rng.dirichlet(np.ones(classes), n).astype(np.float32) * seen[:, None].astype(np.float32)
    one = next(em_steps(g, y, bounds, r, structure, 1, 0.2, seen, similar=0.4))
    assert (one.responsibilities[~seen] == 0).all() and np.allclose(one.responsibilities[seen].sum(1), 1, atol=1e-5)
    counts = sum(np.outer(r[i], np.eye(3)[y[i]]) for i in range(n) if seen[i])
    np.testing.assert_allclose(one.transition, transition_from_counts(counts, structure.discount), rtol=1e-5)
    held_out, likelihood = 0.0, 0.0
    for i in range(n):
        mu = np.array([sum(r[j, k] * g[j] for j in range(n) if j != i) for k in range(classes)])
        p = np.exp(mu @ g[i] / np.linalg.norm(mu, axis=1) / one.temperature)
        p /= p.sum()
        if not seen[i]:  # nothing of it is in the matrix
            label = one.transition[:, y[i]]
        else:
            rest = counts - np.outer(r[i], np.eye(3)[y[i]])
            pooled = transition_from_counts(counts, np.inf)
            taken = np.minimum(rest, structure.discount) * (1 - np.eye(3))
            label = (rest - taken + (taken.sum(1, keepdims=True) + 0.5) * pooled)[:, y[i]] / (rest.sum(1) + 0.5)
            label = pooled[:, y[i]] if np.isinf(structure.discount) else label
        if structure.similar:
            follows = (1 - np.diag(one.transition)) * np.minimum(p[y[i]] / (1 - p), 1)
            label = np.where(np.arange(classes) == y[i], label, 0.6 * label + 0.4 * follows)
        value = np.log((p * label).sum())
        held_out, likelihood = (held_out, likelihood + value) if seen[i] else (held_out + value, likelihood)
    assert one.held_out == pytest.approx(held_out, rel=1e-4)
    assert one.log_likelihood == pytest.approx(likelihood, rel=1e-4)


def test_discounting_between_free_and_shared():
    counts = np.array([[50.0, 9.0, 1.0], [0.0, 60.0, 0.0], [3.0, 0.0, 57.0]])
    np.testing.assert_allclose(transition_from_counts(counts, 0.0), counts / 60, atol=0.01)
    shared = transition_from_counts(counts, np.inf)
    assert np.allclose(np.diag(shared), shared[0, 0]) and shared[0, 0] == pytest.approx(167.5 / 181)
    for discount in (0.0, 0.5, 2.0, np.inf):
        np.testing.assert_allclose(transition_from_counts(counts, discount).sum(1), 1)


def test_naming_resists_a_shifted_chain():
    """Moving five clusters up by one gains right labels, but leaves one class with none: the names stay."""
    counts = np.zeros((8, 8))
    for k in range(8):
        counts[k, k], counts[k, (k + 1) % 8] = (4, 6) if k < 5 else (7, 3)
    assert counts[range(5), range(1, 6)].sum() + counts[[6, 7], [6, 7]].sum() + counts[5, 0] > np.trace(counts) - 8
    np.testing.assert_array_equal(match_clusters(counts), np.arange(8))


def test_embedding_is_unit_and_whitens_leading_directions():
    features, _ = blobs([50] * 4)
    axes = principal_axes(features, 4)
    coordinates, scale = axes.project(features), axes.scale
    g = axes.rescale(coordinates, 4)
    np.testing.assert_allclose(np.linalg.norm(g, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose((coordinates**2).sum(0), scale**2, rtol=0.05)


@pytest.mark.skipif(not FEATURES.exists(), reason="Office-31 ResNet-50 features are not beside the project")
@pytest.mark.parametrize("kind, rate, least", [(pair, 0.2, 0.97), (pair, 0.45, 0.95), (symmetric, 0.45, 0.95)])
def test_office_dslr(kind, rate, least):
    from tllib_ext.split import PRESETS

    stored = np.load(FEATURES / "dslr.npz")
    index = [PRESETS["Office31"].source_index(name) for name in stored["classes"]]
    labels = np.array([-1 if index[k] is None else index[k] for k in stored["labels"]])
    features, true = stored["features"][labels >= 0], labels[labels >= 0]
    noisy = flip(true, kind(20, rate), 0)
    model = estimate_labels(features, noisy, 20)
    assert isinstance(model, LabelModel) and len(model.trace) > 0
    assert (model.corrected == true).mean() >= least
    assert abs(model.rate - (noisy != true).mean()) <= 0.05


def test_the_same_question_is_answered_once(monkeypatch):
    from tllib_ext.labels import cached
    from tllib_ext.labels.transition import fit_labels

    asked = []
    monkeypatch.setattr(cached, "fit_labels", lambda *words: asked.append(words) or fit_labels(*words))
    features, true = blobs([12] * 4, dim=8)
    noisy = flip(true, symmetric(4, 0.2), 0)
    first = cached.estimate_once(features, noisy, 4)
    assert cached.estimate_once(features.copy(), noisy.copy(), 4) is first and len(asked) == 1
    other = noisy.copy()
    other[0] = (other[0] + 1) % 4
    for words in ((features, other, 4, 0), (features + 1, noisy, 4, 0), (features, noisy, 4, 1), (features, noisy, 5, 0)):
        cached.estimate_once(*words)
    assert len(asked) == 5
    assert np.array_equal(cached.estimate_once(features, noisy, 4).responsibilities, first.responsibilities)
