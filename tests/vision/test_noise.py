"""Label noise: the authors' draw, exact counts, matrices from files."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.errors import UserError
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.vision.datasets import NOISES
from tllib_ext.vision.datasets.imagelist import ImageList
from tllib_ext.vision.datasets.noisy import NoisyLabels, draw_labels, transition_matrix
from tllib_ext.vision.datasets.universal import UniversalView

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
CASES = (("pair", 0.2), ("pair", 0.45), ("symmetric", 0.2), ("symmetric", 0.45))

#: sha1 prefixes of the comma-joined noisy labels that the authors' function draws, for the four CASES.
DIGESTS = {
    "amazon": "8425306812 92f2d08325 b98cfb3487 5944453b65",
    "dslr": "d2a04fd8ef 2b0350b0ac a3cd4f511a 1ea0812ce0",
    "webcam": "93bf70d182 9066e5ca96 5381758dad 3921308429",
    "Art": "0e1be6d8da 8ae5fac213 671734649b 729679825c",
    "Clipart": "e940f96118 e53338cf3f 8eefd57ae4 b469004476",
    "Product": "bbbf7751f7 461145e7fd 51aacfe2dd 11f69198a1",
    "Real": "f17cd5dcdf 618ecb5b51 3b9b6509d3 42273d336b",
}


def digest(labels):
    return hashlib.sha1(",".join(map(str, labels)).encode()).hexdigest()[:10]


@pytest.mark.parametrize("domain", DIGESTS)
def test_draw_equals_the_authors_on_their_lists(domain):
    file = SHARED / "reference_lists" / f"source_{domain}_opda.txt"
    if not file.exists():
        pytest.skip("the authors' image lists are not here")
    labels = np.array([int(line.split()[-1]) for line in file.read_text().splitlines() if line.strip()])
    drawn = [digest(draw_labels(labels, transition_matrix(*case, labels.max() + 1))) for case in CASES]
    assert " ".join(drawn) == DIGESTS[domain]


@pytest.mark.parametrize("domain", ["amazon", "dslr", "webcam"])
def test_draw_equals_the_authors_from_tllibs_list_alone(domain):
    root = SHARED / "office31"
    if not root.exists():
        pytest.skip("Office-31 is not here")
    split = PRESETS["Office31"]
    classes = sorted(split.source_classes + split.target_private)
    view = UniversalView(ImageList(root, classes, root / "image_list" / f"{domain}.txt"), split, "source")
    drawn = [digest(NoisyLabels(view, *case).targets) for case in CASES]
    assert " ".join(drawn) == DIGESTS[domain]


def test_runs_consume_the_stream_like_single_draws():
    labels, q = np.array([0, 0, 2, 2, 2, 1, 0]), transition_matrix("symmetric", 0.6, 3)
    rng = np.random.RandomState(5)
    assert draw_labels(labels, q, seed=5).tolist() == [rng.multinomial(1, q[y]).argmax() for y in labels]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.sampled_from(["pair", "symmetric"]),
    st.floats(0, 0.99),
    st.integers(0, 9),
)
def test_exact_flips_exactly(labels, noise, rate, seed):
    labels = np.array(labels)
    noisy = draw_labels(labels, transition_matrix(noise, rate, 5), seed, "exact")
    for k in np.unique(labels):
        members = labels == k
        assert (noisy[members] != k).sum() == np.floor(rate * members.sum() + 0.5)
    if noise == "pair":
        assert set((noisy - labels)[noisy != labels] % 5) <= {1}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["none", "pair", "symmetric"]), st.floats(0, 0.99), st.integers(2, 30))
def test_matrices_are_row_stochastic(noise, rate, k):
    q = transition_matrix(noise, rate, k)
    assert q.shape == (k, k) and (q >= 0).all() and np.allclose(q.sum(1), 1)
    assert np.allclose(q.diagonal(), 1 if noise == "none" else 1 - rate)


class Listed:
    """The least that a data set must have."""

    classes, loader = ["a", "b", "c", "u"], None
    samples = [(f"{i}.png", i % 4) for i in range(400)]


SPLIT = LabelSplit(["a", "b"], ["c"], ["u"])


def test_wrapper_reports_what_it_did():
    noisy = NoisyLabels(UniversalView(Listed, SPLIT, "source"), "pair", 0.3, mode="exact")
    assert noisy.realised_rate == pytest.approx(0.3) and noisy.rate == pytest.approx(0.3)
    assert np.allclose(noisy.realised_transition, noisy.transition)
    assert (noisy.clean_targets != noisy.targets).sum() == noisy.is_flipped.sum() == 90
    assert noisy.samples[0] == ("0.png", noisy.targets[0]) and len(noisy) == 300


def test_seed_is_its_own():
    view = UniversalView(Listed, SPLIT, "source")
    a, b, c = (NoisyLabels(view, "symmetric", 0.4, seed=s).targets for s in (0, 0, 1))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_target_is_refused():
    with pytest.raises(UserError, match="source"):
        NoisyLabels(UniversalView(Listed, SPLIT, "target"))


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_matrix_files(tmp_path, suffix):
    q = np.array([[0.5, 0.25, 0.25], [0, 1, 0], [0.1, 0, 0.9]])
    file = tmp_path / f"q.{suffix}"
    np.save(file, q) if suffix == "npy" else np.savetxt(file, q, delimiter=",")
    noisy = NoisyLabels(UniversalView(Listed, SPLIT, "source"), str(file))
    assert np.allclose(noisy.transition, q) and noisy.rate == pytest.approx((0.5 + 0 + 0.1) / 3)


@pytest.mark.parametrize(
    "text, message",
    [("1,0,0\n0,1,0\n0,0,0.5", "row 2 sums to 0.5"), ("1,0\n0,1", "shape"), ("1,x\n", "not a matrix"),
     ("2,-1,0\n0,1,0\n0,0,1", "negative"), ("nan,1,0\n0,1,0\n0,0,1", "non-finite")],
)  # fmt: skip
def test_bad_matrix_files(tmp_path, text, message):
    file = tmp_path / "q.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        transition_matrix(str(file), 0.2, 3)


@pytest.mark.parametrize("noise, rate, message", [("pairs", 0.2, "did you mean 'pair'"), ("pair", 1.0, r"\[0, 1\)"),
                                                  ("pair", -0.1, r"\[0, 1\)"), ("no.csv", 0.1, "cannot read")])  # fmt: skip
def test_bad_noise(noise, rate, message):
    with pytest.raises(UserError, match=message):
        transition_matrix(noise, rate, 3)


def test_a_noise_that_depends_on_the_instance(monkeypatch):
    def even_rows(rate, num_classes, samples):
        assert samples.features is None and len(samples.paths) == len(samples.labels)
        rows = np.eye(num_classes)[samples.labels]
        rows[::2] = (1 - 2 * rate) * rows[::2] + 2 * rate * np.roll(rows[::2], 1, axis=1)
        return rows

    even_rows.per_sample = True
    monkeypatch.setattr(NOISES, "_entries", dict(NOISES._entries))
    NOISES.register("even_rows", even_rows)
    view = UniversalView(Listed, SPLIT, "source")
    noisy, again = (NoisyLabels(view, "even_rows", 0.3, seed=2) for _ in range(2))
    assert np.array_equal(noisy.targets, again.targets) and not noisy.is_flipped[1::2].any()
    assert 0.2 < noisy.realised_rate < 0.4 and noisy.rate == pytest.approx(0.3)
    assert np.allclose(noisy.transition, transition_matrix("pair", 0.3, 3), atol=0.01)
    with pytest.raises(UserError, match="drawn iid only"):
        NoisyLabels(view, "even_rows", 0.3, mode="exact")
    with pytest.raises(UserError, match="no transition matrix"):
        transition_matrix("even_rows", 0.3, 3)


@pytest.mark.parametrize("matrix, message", [(np.eye(2), "shape"), (np.full((3, 3), 0.5), "sums to 1.5")])
def test_a_registered_noise_is_checked(monkeypatch, matrix, message):
    monkeypatch.setattr(NOISES, "_entries", dict(NOISES._entries))
    NOISES.register("wrong", lambda rate, num_classes: matrix)
    with pytest.raises(UserError, match=message):
        transition_matrix("wrong", 0.2, 3)
