"""Activation checkpointing and micro-batches: the same training with less memory."""

import numpy as np
import pytest
import torch
from torch import nn

from tllib_ext.api import train
from tllib_ext.errors import UserError
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.split import LabelSplit
from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.memory import accumulate, checkpoint_activations
from tllib_ext.training.players import SGDPlayers

SPLIT = LabelSplit(["a", "b", "c"], ["p", "q"], ["u"])
N, STEPS = 40, 100
NATIVE = [name for name in METHODS if not METHODS.get(name).training_free]
SELECTING = [name for name in NATIVE if hasattr(METHODS.get(name).Hparams, "drop_rate")]


class Net(nn.Module):
    out_features = 8

    def __init__(self, norm):
        super().__init__()
        layers = lambda width: [nn.Linear(width, 8), *norm(), nn.Tanh()]  # noqa: E731
        self.blocks = nn.Sequential(nn.Sequential(*layers(6)), nn.Sequential(*layers(8)))

    def forward(self, x):
        return self.blocks(x)


def trained(name, change, norm=list):
    """State and logs after steps of every stage, in float64."""
    torch.manual_seed(0)
    cls, g = METHODS.get(name), torch.Generator().manual_seed(1)
    x_s, x_t = (torch.randn(N, 6, generator=g, dtype=torch.float64) for _ in range(2))
    method = cls(Net(norm), SPLIT, cls.Hparams()).double()
    if hasattr(method, "bank"):
        method.bank.float()  # similarities are float32
    labels = np.arange(N) % SPLIT.num_source
    features = lambda x: lambda: nn.functional.pad(x.float(), (0, 2))  # noqa: E731  # as wide as the network's
    method.prepare(
        Context(STEPS, N, N, rate=0.3, source_labels=labels, source_features=features(x_s), target_features=features(x_t))
    )
    change(method.backbone)
    play, logs = SGDPlayers(method.train().players(), lr=0.1, total_steps=STEPS), []
    for step in (0, 20, 51, 52, 95):
        s, t = torch.randperm(N, generator=g)[:11], torch.randperm(N, generator=g)[:11]
        play.begin(step)
        torch.manual_seed(step)
        logs.append(method.update(Batch(x_s[s], torch.as_tensor(labels)[s], s), Batch(x_t[t], None, t), step, play))
    return method.state_dict(), logs


def test_the_methods_that_select():
    assert {"divergence", "credo", "dance_sel", "coteaching", "jocor"} <= set(SELECTING)


@pytest.mark.parametrize("name", NATIVE)
def test_micro_batches_equal_the_whole_batch(name):
    whole, logs = trained(name, lambda net: None)
    parts, logs_of_parts = trained(name, lambda net: accumulate(net, 3))
    for key, value in whole.items():
        torch.testing.assert_close(parts[key], value, rtol=0, atol=1e-9)
    for first, second in zip(logs, logs_of_parts):
        for key in {"kept", "known", "agree"} & set(first):
            assert torch.equal(first[key], second[key]), f"another {key}"


def norm_and_dropout():
    return [nn.BatchNorm1d(8), nn.Dropout(0.3)]


@pytest.mark.parametrize("name", NATIVE)
def test_checkpointed_activations_change_nothing(name):
    """Running statistics, the replayed ones of divergence among them, and dropout included."""
    whole, _ = trained(name, lambda net: None, norm_and_dropout)
    saved, _ = trained(name, checkpoint_activations, norm_and_dropout)
    for key, value in whole.items():
        assert torch.equal(saved[key], value), key


@pytest.mark.parametrize("change", [checkpoint_activations, lambda net: accumulate(net, 4)])
def test_less_is_kept_for_the_backward_pass(change):
    def kept(net):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            loss = net(torch.ones(64, 6)).sum()
        loss.backward()
        return sum(sizes)

    plain, changed = Net(list), Net(list)
    change(changed)
    assert kept(changed) < 0.7 * kept(plain)


def test_micro_batches_refuse_batch_norm():
    with pytest.raises(UserError, match="2 batch norms.*checkpoint_activations=True"):
        accumulate(Net(norm_and_dropout), 2)


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(checkpoint_activations=True, compile=True), "compile=True: choose one"),
        (dict(accumulate=4), "batch norms"),
        (dict(accumulate=4, freeze_backbone=True), "no backbone to train"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(UserError, match=message):
        build(RunConfig(device="cpu", cache="off", workers=0, **settings))


def test_learning_rate_settings_reach_the_optimiser(tmp_path):
    rates = {"default": {}, "backbone": {"lr_mult_backbone": 0.5}, "warmup": {"lr_warmup": 10**9}}
    ends = {}
    for name, settings in rates.items():
        config = RunConfig(method="source_only", steps=1, device="cpu", log=str(tmp_path / name), no_report=True,
                           checkpoint_activations=name == "backbone", workers=0, **settings)  # fmt: skip
        ends[name] = dict(train(config).method.named_parameters())
    first = next(iter(ends["default"]))
    moved = {name: (ends[name][first] - ends["warmup"][first]).abs().max().item() for name in ("default", "backbone")}
    assert moved["default"] > 0 and moved["backbone"] == pytest.approx(5 * moved["default"], rel=1e-3)
