"""Images of no class in the source, and class sizes with a long tail."""

import math

import numpy as np
import pytest

from tllib_ext.errors import UserError
from tllib_ext.labels.issues import FINE, KINDS
from tllib_ext.split import LabelSplit
from tllib_ext.training.config import RunConfig
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.open_set import long_tail
from tllib_ext.vision.datasets.universal import UniversalView

SIZES = {"a": 40, "b": 25, "c": 35, "u": 60}


class Listed:
    classes, loader = list(SIZES), None
    samples = [(f"{name}/{i}.png", k) for k, name in enumerate(SIZES) for i in range(SIZES[name])]


class Features(Listed):
    features = np.random.RandomState(0).randn(160, 3).astype(np.float32)


SPLIT = LabelSplit(["a", "b"], ["c"], ["u"])
VIEW = UniversalView(Features, SPLIT, "source")


def test_images_of_the_private_classes_are_added_to_every_class():
    noisy = NoisyLabels(VIEW, "open_set", 0.2, seed=3)
    extra = [math.ceil(n * 0.2 / 0.8) for n in (40, 25, 35)]
    assert len(noisy) == 100 + sum(extra) and noisy.targets[100:].tolist() == np.repeat(range(3), extra).tolist()
    assert np.array_equal(noisy.targets[:100], VIEW.targets) and (noisy.clean_targets[100:] == SPLIT.unknown).all()
    assert all(path.startswith("u/") for path in noisy.paths[100:]) and len(set(noisy.paths)) == len(noisy)
    rows = [Features.samples.index((path, k)) for path, k in ((p, Listed.classes.index(p[0])) for p in noisy.paths)]
    assert np.array_equal(noisy.features, Features.features[rows])
    assert (noisy.realised_rate, noisy.rate) == pytest.approx((sum(extra) / len(noisy),) * 2)
    assert np.array_equal(noisy.realised_transition, np.eye(3)) and noisy[100][1] == noisy.samples[100][1] == 0
    assert noisy.paths == NoisyLabels(VIEW, "open_set", 0.2, seed=3).paths != NoisyLabels(VIEW, "open_set", 0.2).paths


def test_images_can_be_replaced_and_half_of_the_noise_can_be_closed():
    noisy = NoisyLabels(VIEW, "open_set", 0.4, seed=1, options={"replace": "1", "closed": "0.5"})
    foreign = noisy.clean_targets == SPLIT.unknown
    assert len(noisy) == 100 and 0.1 < foreign.mean() < 0.3 and 0.1 < (noisy.is_flipped & ~foreign).mean() < 0.3
    assert noisy.rate == pytest.approx(0.4, abs=0.06)


def test_foreign_images_of_another_set(tmp_path):
    file = tmp_path / "other.npz"
    np.savez(file, features=np.full((50, 3), 7.0), labels=np.zeros(50, int), classes=np.array(["z"]))
    noisy = NoisyLabels(VIEW, "open_set", 0.3, options={"images": str(file)})
    assert (noisy.features[100:] == 7).all() and noisy.paths[100].startswith("row:")
    np.savez(file, features=np.ones((50, 4)), classes=np.array(["z"]))
    with pytest.raises(UserError, match="4 wide, those of the source 3"):
        NoisyLabels(VIEW, "open_set", 0.3, options={"images": str(file)})


def test_too_few_foreign_images_are_an_error_with_the_numbers():
    with pytest.raises(UserError, match="151 images of no class are needed, the source domain has 60"):
        NoisyLabels(VIEW, "open_set", 0.6)
    closed = UniversalView(Listed, LabelSplit(["a", "b", "c", "u"]), "source")
    with pytest.raises(UserError, match="images=PATH"):
        NoisyLabels(closed, "open_set", 0.1)


def test_long_tail_sizes_are_the_formula():
    part = long_tail(VIEW, 0.1, seed=4)
    order = np.random.RandomState(4).permutation(3)
    expected = {k: min([40, 25, 35][k], round(40 * 0.1 ** (place / 2))) for place, k in enumerate(order)}
    assert np.bincount(part.targets).tolist() == [expected[k] for k in range(3)]
    assert np.array_equal(part.features, Features.features[part.indices]) and (np.diff(part.indices) > 0).all()
    assert len(long_tail(VIEW, 1.0)) == 100
    with pytest.raises(UserError, match=r"\(0, 1\]"):
        long_tail(VIEW, 1.5)


def test_a_run_with_images_of_no_class_writes_its_audit(tmp_path, monkeypatch):
    from tllib_ext.evaluation.suspects_file import read_suspects
    from tllib_ext.training.build import build
    from tllib_ext.training.trainer import train

    rng = np.random.RandomState(1)
    for domain in ("one", "two"):
        labels = np.repeat(np.arange(4), 30)
        x = rng.randn(120, 6) + 4 * np.eye(6)[labels]
        np.savez(tmp_path / f"{domain}.npz", features=x, labels=labels, classes=np.array(Listed.classes))
    config = RunConfig(
        root=str(tmp_path), data="features", source="one", target="two", split=SPLIT, noise="open_set", rate=0.2,
        long_tail=0.5, method="source_only", steps=20, log=str(tmp_path / "run"), no_report=True, device="cpu",
    )  # fmt: skip
    outcome = train(build(config))
    suspects = read_suspects(outcome.folder / "suspects.csv", SPLIT)
    assert suspects.is_wrong.mean() == pytest.approx(outcome.results["realised_rate"]) and len(suspects.given) < 120
    assert (suspects.clean[suspects.is_wrong] == SPLIT.unknown).all()
    assert set(suspects.kind) <= {FINE, *KINDS} and len(suspects.group) == len(suspects.given)
    assert ((suspects.kind != FINE) | (suspects.suggested == suspects.given)).all()


@pytest.mark.parametrize("noise", ["pair", "open_set"])
def test_a_share_of_every_label_is_held_out(noise):
    whole = NoisyLabels(VIEW, noise, 0.2, seed=3)
    kept, held = whole.hold_out(0.3, seed=1)
    assert sorted(kept.paths + held.paths) == sorted(whole.paths) and not set(kept.paths) & set(held.paths)
    given, truth = dict(whole.samples), dict(zip(whole.paths, whole.clean_targets))
    for part in (kept, held):
        assert dict(part.samples) == {path: given[path] for path in part.paths}
        assert part.clean_targets.tolist() == [truth[path] for path in part.paths]
        assert part.realised_rate == (part.targets != part.clean_targets).mean()
        assert np.array_equal(part.features, whole.features[[whole.paths.index(path) for path in part.paths]])
    counts = np.bincount(whole.targets)
    assert np.bincount(held.targets).tolist() == [int(0.3 * n) for n in counts]
    assert held.paths != whole.hold_out(0.3, seed=2)[1].paths
    with pytest.raises(UserError, match="hold_out=0.01: no label has 100 images"):
        whole.hold_out(0.01)
