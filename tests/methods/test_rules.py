"""Rules that turn outputs into predictions."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from tllib_ext.errors import UserError
from tllib_ext.methods import METHODS
from tllib_ext.methods.context import Context
from tllib_ext.methods.rules import EntropyRule, predict_unknown_class
from tllib_ext.split import LabelSplit


def test_an_output_for_unknown_ranks_by_what_decides():
    """The first image is called unknown and the second is not, although its probability of unknown is larger."""
    logits = torch.tensor([[5.0, 5.0, 5.0, 5.5], [0.0, -9.0, -9.0, -0.1]])
    out = predict_unknown_class(logits, unknown=3)
    assert out.unknown.tolist() == [True, False]
    assert out.score[0] > 0 > out.score[1]
    probability = logits.softmax(1)[:, 3]
    assert probability[0] < probability[1]
    torch.testing.assert_close(out.probs.sum(1), torch.ones(2))


def test_the_decision_is_the_argmax():
    logits = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    out = predict_unknown_class(logits, unknown=5)
    assert torch.equal(out.unknown, logits.argmax(1) == 5) and torch.equal(out.unknown, out.score > 0)
    assert not predict_unknown_class(torch.zeros(1, 3), unknown=2).unknown.any()  # a tie is known, as by argmax


@pytest.mark.parametrize("rule, threshold", [("margin", None), ("entropy", 0.0), ("confidence", 1.0)])
def test_bad_settings_are_errors(rule, threshold):
    with pytest.raises(UserError, match="unknown_rule|unknown_threshold"):
        EntropyRule(3, rule, threshold)


def two_domains():
    """Labels and features of four source classes, and of a target with three of them and two others."""
    rng = np.random.default_rng(0)
    means = 3 * rng.standard_normal((6, 24))
    ys, yt = np.repeat(np.arange(4), 40), np.repeat([0, 1, 2, 4, 5], 40)
    x_s = torch.tensor(means[ys] + rng.standard_normal((160, 24)), dtype=torch.float32)
    x_t = torch.tensor(means[yt] + rng.standard_normal((200, 24)) + 0.3, dtype=torch.float32)
    return ys, yt, x_s, x_t


def test_the_target_model_decides_for_any_classifier_and_is_saved_with_it():
    ys, yt, x_s, x_t = two_domains()
    rule = EntropyRule(4, "target-model")
    said = []
    context = Context(1, source_labels=ys, source_inputs=x_s, target_inputs=x_t, say=said.append)
    rule.estimate(context)
    rule.estimate(context)  # frozen features: once is enough
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    out = rule(logits, x_t, x_t)
    assert (out.unknown.numpy() == (yt > 3)).mean() > 0.95 and rule.threshold == 0.5 and len(said) == 1
    assert torch.equal(out.probs, logits.softmax(1))
    other = EntropyRule(4, "target-model")
    other.load_state_dict(rule.state_dict())
    assert torch.equal(other(logits[:1], x_t[:1], x_t[:1]).score, rule(logits[:1], x_t[:1], x_t[:1]).score)
    with pytest.raises(ValueError, match="inputs"):
        other(logits)
    assert not EntropyRule(4).state_dict()  # models with the other rules are saved as before


class Wide(torch.nn.Linear):
    out_features = 24

    def __init__(self):
        super().__init__(24, 24)


WITH_RULE = [name for name in METHODS if "unknown_rule" in {field.name for field in fields(METHODS.get(name).Hparams)}]


@pytest.mark.parametrize("name", WITH_RULE)
def test_every_method_with_a_rule_can_use_the_target_model(name):
    ys, yt, x_s, x_t = two_domains()
    torch.manual_seed(0)
    cls = METHODS.get(name)
    method = cls(Wide(), LabelSplit("012", "3", "45"), cls.Hparams(unknown_rule="target-model")).eval()
    method.context = Context(1, source_labels=ys, source_inputs=x_s, target_inputs=x_t)
    method.refresh()
    out = method.predict(x_t)
    assert (out.unknown.numpy() == (yt > 3)).mean() > 0.95
