"""Treatments of the given labels: confident learning against its definition and the package cleanlab, the stage in a run."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from tllib_ext.errors import UserError
from tllib_ext.labels.treatment import TREATMENTS, confident_issues, confident_joint, out_of_sample, treat_labels
from tllib_ext.methods.loss_history import LossHistory

K = 4


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    true = np.repeat(np.arange(K), 40)
    features = 5 * np.eye(6)[true] + rng.normal(size=(160, 6))
    return features, true, np.where(rng.random(160) < 0.2, (true + 1) % K, true)


def test_the_confident_joint_by_hand(data):
    features, _, given = data
    probs = out_of_sample(features, given, K)
    limits = [np.mean([p[j] for p, y in zip(probs, given) if y == j]) for j in range(K)]
    counts = Counter()
    for p, y in zip(probs, given):
        candidates = [k for k in range(K) if p[k] >= limits[k] - 1e-6]
        if candidates:
            counts[y, max(candidates, key=lambda k: p[k])] += 1
    expected = np.array([[max(counts[j, k], int(j == k)) for k in range(K)] for j in range(K)], float)
    for j in range(K):
        expected[j] *= (given == j).sum() / expected[j].sum()
    np.testing.assert_allclose(confident_joint(probs, given), expected)


def test_confident_learning_agrees_with_cleanlab(data):
    find = pytest.importorskip("cleanlab.filter", reason="the package cleanlab is not installed").find_label_issues
    features, true, given = data
    probs = out_of_sample(features, given, K)
    theirs, ours = find(given, probs, n_jobs=1), confident_issues(probs, given)
    assert (theirs == ours).mean() > 0.98  # cleanlab rounds the joint so that its rows keep their sums
    assert ours[given != true].mean() > 0.6 and ours[given == true].mean() < 0.1


def test_out_of_sample_means_it(data):
    features, true, given = data
    swapped = given.copy()
    swapped[0] = (given[0] + 2) % K
    own = lambda labels: out_of_sample(features, labels, K)[0]  # noqa: E731
    np.testing.assert_allclose(own(swapped), own(given), atol=0.15)  # its own label hardly matters


@pytest.mark.parametrize("by", TREATMENTS)
def test_what_is_learnt_is_right_more_often(data, by):
    features, true, given = data
    rate = float((given != true).mean())
    treated = treat_labels(by, features, given, K, rate)
    right = np.average(treated.labels == true, weights=treated.weights)
    if by == "given":
        assert (treated.labels == given).all() and (treated.weights == 1).all() and treated.rate == rate
    else:
        assert right > 0.93 > (given == true).mean() and treated.rate < 0.1
    assert ((treated.labels == given) | (by == "label-model")).all() and "changed" in treated.summary(given)
    assert (treated.weights == 0).any() == (by in ("small-loss", "confident"))


def test_every_class_keeps_an_image_and_errors_are_clear():
    probs = np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.05, 0.95]])
    assert confident_issues(probs, np.array([0, 0, 0, 1])).sum() < 3
    with pytest.raises(UserError, match="cross-validation needs 2 of each"):
        out_of_sample(np.eye(3), np.array([0, 0, 1]), 2)
    with pytest.raises(UserError, match="labels_by='cleanlab': expected given, small-loss"):
        treat_labels("cleanlab", np.eye(3), np.array([0, 0, 1]), 2)


def run(root, folder, *more):
    from tllib_ext.cli.train import main

    flags = f"{root} -d features -s alpha -t beta --split 3/2/1 --noise pair --rate 0.25 --steps 6 -b 12 --device cpu --no-report"
    assert main([*flags.split(), "--log", str(folder), *more]) == 0
    return json.loads((folder / "results.json").read_text())


class Seen:
    """What a method was given."""


@pytest.mark.parametrize("by", ["small-loss", "confident", "label-model"])
def test_the_labels_reach_the_method(feature_root, tmp_path, monkeypatch, by):
    from tllib_ext.methods.source_only import SourceOnly

    plain, seen = SourceOnly.update, Seen()
    seen.labels = {}

    def prepare(self, context):
        seen.context = context

    def update(self, source, target, step, play):
        seen.labels.update(zip(source.index.tolist(), source.labels.tolist()))
        return plain(self, source, target, step, play)

    monkeypatch.setattr(SourceOnly, "prepare", prepare)
    monkeypatch.setattr(SourceOnly, "update", update)
    results = run(feature_root, tmp_path / "run", "-m", "source_only", "--labels-by", by)
    context = seen.context
    assert results["labels_by"] == by and context.rate < 0.25
    expected = treat_labels(by, context.source_inputs.numpy(), given_labels(tmp_path / "run"), 5, 0.25)
    assert (context.source_labels == expected.labels).all() and (context.source_weights == expected.weights).all()
    assert all(expected.weights[i] > 0 and expected.labels[i] == label for i, label in seen.labels.items())


def given_labels(folder):
    return np.load(folder / "labels.npy")


def test_a_method_with_labels_of_its_own_refuses(feature_root, tmp_path):
    from tllib_ext.cli.train import main

    flags = f"{feature_root} -d features -s alpha -t beta --split 3/2/1 --labels-by confident -m"
    for method in ("credo", "mixture"):
        with pytest.raises(UserError, match=f"{method} estimates the labels itself"):
            main([*flags.split(), method, "--log", str(tmp_path / "run")])
        assert not (tmp_path / "run").exists()


def test_the_audit_stays_with_the_given_labels():
    logits = torch.tensor([[2.0, 0.0, 0.0]])
    history = LossHistory(2, 3, torch.device("cpu"), given=torch.tensor([0, 1]))
    history.add(torch.tensor([1]), torch.tensor([0.2]), [logits])  # 0.2: the loss of the label that is learnt
    assert history.loss[1].item() == pytest.approx(-logits.log_softmax(1)[0, 1].item(), rel=1e-5)


@pytest.mark.parametrize("by", ["given", "label-model"])
def test_the_audit_of_a_run_reads_given_labels_and_their_losses(feature_root, tmp_path, monkeypatch, by):
    from tllib_ext.training import outputs, trainer

    seen, whole = Seen(), outputs.audit_labels

    class Remembered(LossHistory):
        def __init__(self, *args):
            super().__init__(*args)
            seen.history_of = self.given

    def audit_labels(history, given, *more):
        seen.given = given
        return whole(history, given, *more)

    monkeypatch.setattr(trainer, "LossHistory", Remembered)
    monkeypatch.setattr(outputs, "audit_labels", audit_labels)
    run(feature_root, tmp_path / "run", "-m", "source_only", "--labels-by", by)
    given = given_labels(tmp_path / "run")
    data = np.load(feature_root / "alpha.npz")
    assert (seen.given == given).all() and 5 < (given != data["labels"][data["labels"] < 5]).sum() < 30
    if by == "given":  # what is learnt is what was given
        assert seen.history_of is None
    else:
        assert (seen.history_of.numpy() == given).all()
