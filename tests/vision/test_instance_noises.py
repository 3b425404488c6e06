"""Noise that depends on the image: against the formulas written out, and the rates that are reached."""

import math

import numpy as np
import pytest

from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets.instance_noises import class_probabilities
from tllib_ext.vision.datasets.noises import NoiseSamples
from tllib_ext.vision.datasets.noisy import NoisyLabels, transition_matrix
from tllib_ext.vision.datasets.universal import UniversalView

CLASSES = 4
INSTANCE = ("part_dependent", "pmd1", "pmd2", "pmd3", "runner_up", "runner_up_hard")


class Blobs:
    """Four overlapping classes in eight dimensions."""

    classes, loader = ["a", "b", "c", "d"], None
    labels = np.repeat(np.arange(CLASSES), 60)
    samples = [(f"{i}.png", int(k)) for i, k in enumerate(labels)]
    features = (np.random.RandomState(0).randn(240, 8) + 2.0 * np.eye(8)[labels]).astype(np.float32)


VIEW = UniversalView(Blobs, LabelSplit(["a", "b"], ["c", "d"]), "source")


def samples(seed=0):
    return NoiseSamples(
        VIEW.targets, VIEW.features, VIEW.paths, np.random.default_rng(seed), np.random.RandomState(seed)
    )  # fmt: skip


def test_part_dependent_is_the_formula():
    rho, temperature = 0.3, 5.0
    rows = transition_matrix("part_dependent", rho, CLASSES, samples(7), options={"temperature": temperature})
    from scipy.stats import truncnorm

    rng = np.random.RandomState(7)
    q = truncnorm.rvs(-rho / 0.1, (1 - rho) / 0.1, loc=rho, scale=0.1, size=240, random_state=rng)
    w = rng.standard_normal((CLASSES, 8, CLASSES))
    for i in (0, 77, 239):
        y = Blobs.labels[i]
        a = [sum(float(Blobs.features[i, d]) * w[y, d, j] for d in range(8)) / temperature for j in range(CLASSES)]
        total = sum(math.exp(a[j]) for j in range(CLASSES) if j != y)
        expected = [1 - q[i] if j == y else q[i] * math.exp(a[j]) / total for j in range(CLASSES)]
        assert np.allclose(rows[i], expected)


def test_temperature_turns_part_dependent_noise_into_symmetric_noise():
    def spread(temperature):
        options = {"temperature": temperature}
        rows = transition_matrix("part_dependent", 0.3, CLASSES, samples(), options=options)
        flips = np.array([np.delete(row, y) for row, y in zip(rows, Blobs.labels)])
        flips /= flips.sum(1, keepdims=True)
        entropy = -(flips * np.log(np.maximum(flips, 1e-300))).sum(1).mean()
        assert NoisyLabels(VIEW, "part_dependent", 0.3, options=options).flip_entropy == pytest.approx(entropy)
        return entropy / math.log(CLASSES - 1)

    assert spread(0.05) < 0.1 < 0.9 < spread(20)
    assert NoisyLabels(VIEW, "runner_up", 0.3).flip_entropy == 0 and NoisyLabels(VIEW, "pair", 0.3).flip_entropy is None


KEPT = {
    "pmd1": lambda g: max(1 - (0.5 - g**2 / 2), 0.5),
    "pmd2": lambda g: 1 - (1 - g**3),
    "pmd3": lambda g: 1 - (1 - (g**3 + g**2 + g) / 3),
}


@pytest.mark.parametrize("noise", KEPT)
def test_pmd_is_the_formula_at_one_factor(noise):
    rows, eta = transition_matrix(noise, 0.35, CLASSES, samples()), class_probabilities(samples(), CLASSES)
    factors = []
    for row, p in zip(rows, eta):
        u, s = sorted(range(CLASSES), key=lambda k: -p[k])[:2]
        assert math.isclose(row[u] + row[s], 1)
        if row[u] < 1:
            factors.append(KEPT[noise](p[u] - p[s]) / row[u])
    assert len(factors) > 50 and np.allclose(factors, factors[0])
    assert 1 - rows[np.arange(240), Blobs.labels].mean() == pytest.approx(0.35, abs=1e-6)


def test_pmd_says_which_rates_it_reaches():
    with pytest.raises(UserError, match=r"reaches 0\.\d+ to 0\.\d+ here"):
        NoisyLabels(VIEW, "pmd1", 0.01)


def test_runner_up_is_the_most_probable_wrong_class():
    eta = class_probabilities(samples(), CLASSES)
    second = [max((k for k in range(CLASSES) if k != y), key=lambda k: p[k]) for p, y in zip(eta, Blobs.labels)]
    for noise in ("runner_up", "runner_up_hard"):
        noisy = NoisyLabels(VIEW, noise, 0.25, seed=3)
        assert (noisy.targets == np.where(noisy.is_flipped, second, Blobs.labels)).all()
    own = eta[np.arange(240), Blobs.labels]
    assert noisy.is_flipped.sum() == 60 and own[noisy.is_flipped].max() <= own[~noisy.is_flipped].min()


@pytest.mark.parametrize("noise", INSTANCE)
def test_rates_seeds_and_clean_labels(noise):
    noisy, again, other = (NoisyLabels(VIEW, noise, 0.3, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(noisy.targets, again.targets) and noisy.rate == pytest.approx(0.3, abs=0.02)
    assert noisy.realised_rate == pytest.approx(0.3, abs=0.1) and noisy.transition.shape == (CLASSES, CLASSES)
    assert noise == "runner_up_hard" or not np.array_equal(noisy.targets, other.targets)
    assert not NoisyLabels(VIEW, noise, 0.0).is_flipped.any()


@pytest.mark.parametrize("noise", INSTANCE)
def test_images_without_features_are_an_error_with_a_remedy(noise):
    class Images:
        classes, loader, samples = Blobs.classes, None, Blobs.samples

    view = UniversalView(Images, VIEW.split, "source")
    with pytest.raises(UserError, match="freeze_backbone=True"):
        NoisyLabels(view, noise, 0.3)
    assert NoisyLabels(view, noise, 0.3, features=Blobs.features).is_flipped.any()


def test_random_partner_is_gearnets_at_seed_0():
    q = transition_matrix("random_partner", 0.3, 5)
    np.random.seed(1)  # the published code draws from the global generator
    for k in range(5):
        partner = np.random.choice([j for j in range(5) if j != k])
        assert q[k, partner] == 0.3 and q[k, k] == 0.7 and np.count_nonzero(q[k]) == 2
    assert not np.array_equal(q, transition_matrix("random_partner", 0.3, 5, seed=1))


def test_symmetric_inclusive_may_draw_the_true_class():
    q = transition_matrix("symmetric_inclusive", 0.4, 5)
    assert np.allclose(q, 0.4 / 5 + 0.6 * np.eye(5)) and np.allclose(1 - q.diagonal(), 0.4 * (1 - 1 / 5))


@pytest.mark.parametrize("noise, options, message", [
    ("part_dependent", {"temprature": 1}, "did you mean 'temperature'"), ("pair", {"x": 1}, "has no option 'x'"),
    ("part_dependent", {"temperature": "hot"}, "expected a number"),
    ("part_dependent", {"temperature": 0}, "positive")])  # fmt: skip
def test_bad_options(noise, options, message):
    with pytest.raises(UserError, match=message):
        NoisyLabels(VIEW, noise, 0.3, options=options)
