"""What is stated under a table of a grid."""

import pytest

from tllib_ext.experiments.compare import legend
from tllib_ext.report.tables import make_table

RECORD = {"row": "credo", "method": "credo", "task": "A2D", "seed": 0, "noise_seed": 0, "noise": "pair 0.2", "os": 0.8,
          "steps": 10, "batch_size": 4, "split": "10/10/11", "arch": None, "freeze_backbone": False}  # fmt: skip


@pytest.mark.parametrize("change, words", [
    ({"bottleneck_lr_mult": 1.0}, "frozen features, bottleneck trained at 1.0 x the learning rate"),
    ({}, "frozen features, bottleneck trained at 0.1 x the learning rate"),  # a record of an earlier release
    ({"arch": "resnet18", "freeze_backbone": True, "bottleneck_lr_mult": 0.5}, "resnet18 frozen, bottleneck trained at 0.5 x"),
    ({"arch": "resnet18", "bottleneck_lr_mult": 0.5}, "per domain; resnet18; label sets"),
])  # fmt: skip
def test_the_learning_rate_of_the_bottleneck_is_stated(change, words):
    records = [{**RECORD, **change}]
    assert words in "\n".join(legend(records, "os", make_table(records, "os", ["credo"], ["A2D"], title="")))


def test_a_method_without_training_has_no_steps():
    untrained = {**RECORD, "row": "mixture", "steps": 1, "trained": False}
    text = lambda records: "\n".join(legend(records, "os", make_table(records, "os", ["credo"], ["A2D"], title="")))  # noqa: E731
    assert "no training; frozen features; label sets" in text([untrained])
    assert "last step of 10, batch 4 per domain; frozen features, bottleneck trained" in text([RECORD, untrained])
