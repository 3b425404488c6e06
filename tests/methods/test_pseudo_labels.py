"""The rules of LEAD and GLC, written out sample by sample."""

import math

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from tllib_ext.methods.pseudo_labels import class_count, glc_labels, lead_labels

K, D, N = 3, 6, 40


@pytest.fixture
def target():
    rng = np.random.default_rng(0)
    centres, true = np.eye(D)[[0, 1, 2, 4]], np.repeat(np.arange(4), 10)  # the last class is none of the three
    e = centres[true] + 0.2 * rng.normal(size=(N, D))
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    p = np.exp(e[:, :K] / 0.3)
    return e, p / p.sum(1, keepdims=True), np.linalg.norm(e[:, K:], axis=1), np.eye(D)[:K], true


def most_probable(p, k, count):
    return sorted(range(N), key=lambda i: -p[i, k])[:count]


@pytest.mark.parametrize("clear", [False, True])
def test_lead_is_its_equations(target, clear):
    e, p, r, anchors, true = target
    found = lead_labels(e, p, r, anchors, share=4 / 3, clear=clear)
    count = N // 4
    upper = GaussianMixture(2, random_state=0).fit(r[:, None]).means_.max()
    tops = [most_probable(p, k, count) for k in range(K)]
    for i in range(N):
        common = []
        for k in range(K):
            mean = sum(e[j] for j in tops[k]) / count
            t, s = max(0, e[i] @ mean / np.linalg.norm(mean)), max(0, e[i] @ anchors[k])
            common.append(math.sqrt((1 - math.exp(-t)) * math.exp(s - 1)))
        k = common.index(max(common))
        typical = sum(r[j] for j in tops[k]) / count
        limit = typical + common[k] * max(0, upper - typical)
        assert found.unknown[i] == (r[i] >= limit)
        assert found.labels[i].tolist() == pytest.approx([1 / K] * K if r[i] >= limit else [float(j == k) for j in range(K)])
        weight = 1 - (1 + (r[i] - limit) ** 2 / 1e-4) ** (-(1e-4 + 1) / 2)
        assert found.weights[i] == pytest.approx(1.0 if clear and (r[i] >= upper or r[i] < typical) else weight)
    assert (found.unknown == (true == 3)).mean() > 0.9 and clear == bool((found.weights == 1).any())


def test_glc_is_its_rule(target):
    e, p, _, _, true = target
    found = glc_labels(e, p, share=4 / 3, seed=0)
    count = N // 4
    tops = [most_probable(p, k, count) for k in range(K)]
    means = [np.mean(e[top], axis=0) / np.linalg.norm(np.mean(e[top], axis=0)) for top in tops]
    for i in range(N):
        k = max(range(K), key=lambda k: e[i] @ means[k])
        others = [j for j in range(N) if j not in tops[k]]
        centres = KMeans(4, n_init=1, max_iter=100, random_state=0).fit(e[others]).cluster_centers_
        factor = 0.75 + 0.25 * np.mean([p[j, k] for j in tops[k]])
        known = factor * (e[i] @ means[k]) >= max(e[i] @ c / np.linalg.norm(c) for c in centres)
        assert found.unknown[i] != known and found.labels[i].max() == (1.0 if known else 1 / K)
    assert (found.weights == 1).all() and found.unknown[true == 3].mean() > 0.8


def test_the_number_of_classes(target):
    e = np.eye(8)[np.arange(120) % 8] + 0.05 * np.random.default_rng(0).normal(size=(120, 8))
    assert class_count(e, 4, (0.5, 1, 2, 3)) == 2
    assert class_count(target[0][:3], K, (0.5, 1)) == 1.0  # too few to compare


def test_few_samples_and_equal_values(target):
    e, p, _, anchors, _ = target
    for found in (lead_labels(e[:2], p[:2], np.full(2, 0.5), anchors, 3.0), glc_labels(e[:2], p[:2], 0.25)):
        assert np.isfinite(found.weights).all() and found.labels.sum(1) == pytest.approx(1)
