"""The method without training: what it uses, what it reports, and that a run of it has one step."""

import numpy as np
import pytest
import torch

from tllib_ext.errors import UserError
from tllib_ext.methods.context import Context
from tllib_ext.methods.mixture import Mixture
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.config import RunConfig

SPLIT = LabelSplit(["a", "b", "c"], ["d"], ["u", "v"])


@pytest.fixture(scope="module")
def prepared():
    """A prepared method, its target inputs and their true labels, and what it logged."""
    rng = np.random.default_rng(0)
    means = 3 * rng.standard_normal((6, 24))
    ys, yt = np.repeat(np.arange(4), 40), np.repeat([0, 1, 2, 4, 5], 40)
    xs = torch.tensor(means[ys] + rng.standard_normal((160, 24)), dtype=torch.float32)
    xt = torch.tensor(means[yt] + rng.standard_normal((200, 24)) + 0.3, dtype=torch.float32)
    given = np.where(rng.random(160) < 0.2, (ys + 1) % 4, ys)
    log = []
    method = Mixture(FeatureBottleneck(24, 5), SPLIT).eval()
    method.prepare(
        Context(1, 160, 200, source_labels=given, source_inputs=xs, target_inputs=xt, say=log.append,
                source_features=lambda: method.backbone(xs), target_features=lambda: method.backbone(xt))
    )  # fmt: skip
    return method, xt, np.minimum(yt, 4), "\n".join(log)


def test_noisy_labels_and_unknown_classes_without_training(prepared):
    method, x, y, _ = prepared
    out = method.predict(x)
    label = np.where(out.unknown, 4, out.probs.argmax(1))
    assert (label == y).mean() > 0.95
    assert torch.equal(out.unknown, out.score > 0.5)
    assert out.score.numpy() == pytest.approx(method.target.model.posterior[:, -1], abs=1e-4)


def test_frozen_features_are_used_as_they_are(prepared):
    method, x, _, _ = prepared
    assert torch.equal(method.backbone(x), x) and method.features_dim == 24
    assert not list(method.parameters()) and not method.players()


def test_the_log_gives_the_share_with_its_error_and_absent_classes(prepared):
    log = prepared[3]
    assert "labels of 4 classes" in log and "±" in log and "does not seem to hold: d" in log


def test_a_model_of_release_02_has_its_state_one_level_up(prepared):
    method, x, _, _ = prepared
    old = {"_extra_state": method.state_dict()["target._extra_state"]}
    other = Mixture(FeatureBottleneck(24, 5), SPLIT).eval()
    other.load_state_dict(old)
    assert torch.equal(other.predict(x).score, method.predict(x).score)


def test_a_prediction_before_the_estimate_is_an_error():
    with pytest.raises(UserError, match="prepare"):
        Mixture(FeatureBottleneck(4, 5), SPLIT).predict(torch.zeros(2, 4))


def test_a_run_has_one_step_and_refuses_others():
    config = RunConfig(method="mixture").resolve()
    assert config.steps == 1 and config.resolve().steps == 1
    with pytest.raises(UserError, match="steps=500: mixture is not trained; leave out steps"):
        RunConfig(method="mixture", steps=500).resolve()
    with pytest.raises(UserError, match="lr=0.1: mixture is not trained; leave out lr"):
        RunConfig(method="mixture", lr=0.1).resolve()
    with pytest.raises(UserError, match="drop_rate.*it has none"):
        RunConfig(method="mixture", drop_rate=0.3).resolve()
