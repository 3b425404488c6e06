"""Rules that turn outputs into predictions."""

import pytest
import torch

from tllib_ext.errors import UserError
from tllib_ext.methods.rules import EntropyRule, predict_unknown_class


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
