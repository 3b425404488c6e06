"""Every registered method in every kind of label split: what the loop around it relies on."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch, Hparams
from tllib_ext.methods.context import Context
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.split import LabelSplit
from tllib_ext.training.checkpoint import load_method
from tllib_ext.training.players import SGDPlayers

SPLITS = {
    "closed": LabelSplit(["a", "b", "c"]),
    "partial": LabelSplit(["a", "b"], ["c", "d"]),
    "open": LabelSplit(["a", "b", "c"], [], ["u", "v"]),
    "universal": LabelSplit(["a", "b"], ["c", "d"], ["u"]),
}
N_S, N_T, IN, STEPS = 21, 17, 6, 3


class Tiny(nn.Sequential):
    out_features = 8

    def __init__(self):
        super().__init__(nn.Linear(IN, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, self.out_features))


class Wary(Batch):
    """A target batch whose labels nobody may even ask for."""

    @property
    def y(self):
        raise AssertionError("a method asked for target labels")


def feeds(split, seed=0):
    g = torch.Generator().manual_seed(seed)
    x_s, x_t = torch.randn(N_S, IN, generator=g), torch.randn(N_T, IN, generator=g) + 0.5
    y_s = torch.arange(N_S) % split.num_source
    for size_s, size_t in ((7, 5), (4, 6), (6, 6)):
        s, t = torch.randperm(N_S, generator=g)[:size_s], torch.randperm(N_T, generator=g)[:size_t]
        yield Batch(x_s[s], y_s[s], s), Batch(x_t[t], None, t)


def context(method):
    def features(n):
        return lambda: torch.randn(n, Tiny.out_features, generator=torch.Generator().manual_seed(n))

    labels = np.arange(N_S) % method.split.num_source
    return Context(STEPS, N_S, N_T, rate=0.3, seed=0, source_labels=labels,
                   source_features=features(N_S), target_features=features(N_T))  # fmt: skip


def build(name, split):
    cls = METHODS.get(name)
    torch.manual_seed(0)
    method = cls(Tiny(), split, cls.Hparams())
    method.audit = LossHistory(N_S, split.num_source, torch.device("cpu"))
    method.prepare(context(method))
    return method.train(), SGDPlayers(method.players(), lr=0.01, total_steps=STEPS)


def train(method, play, batch_type=None):
    for step, (source, target) in enumerate(feeds(method.split)):
        play.begin(step)
        torch.manual_seed(step)
        yield method.update(source, batch_type(*target) if batch_type else target, step, play)


@pytest.mark.parametrize("scenario", SPLITS)
@pytest.mark.parametrize("name", METHODS)
def test_three_updates_and_a_prediction(name, scenario):
    split = SPLITS[scenario]
    assert split.scenario == scenario
    method, play = build(name, split)
    before = copy.deepcopy(dict(method.named_parameters()))
    for log in train(method, play, Wary):
        assert ("loss" in log) != method.training_free
        for key, value in log.items():
            assert isinstance(value, torch.Tensor) and value.ndim == 0 and not value.requires_grad, key
            assert torch.isfinite(value), key
    assert all(torch.isfinite(value).all() for value in method.state_dict().values())
    moved = {key for key, value in method.named_parameters() if not torch.equal(value, before[key])}
    if method.training_free:
        assert not moved and not method.players()
    else:
        assert any(key.startswith("backbone.") for key in moved) and any(not key.startswith("backbone.") for key in moved)
        assert method.audit.visits.sum() == 17, "observe every source sample once per step"

    x = torch.randn(9, IN, generator=torch.Generator().manual_seed(3))
    out = method.eval().predict(x)
    assert out.probs.shape == (9, split.num_source) and out.probs.dtype == torch.float32
    torch.testing.assert_close(out.probs.sum(1), torch.ones(9))
    assert out.score.shape == (9,) and out.score.is_floating_point() and torch.isfinite(out.score).all()
    assert out.unknown.shape == (9,) and out.unknown.dtype == torch.bool
    assert not any(value.requires_grad for value in out)
    if out.unknown.any() and not out.unknown.all() and method.threshold is not None:
        assert torch.equal(out.unknown, out.score > method.threshold), "high score = unknown"
    parts = [method.predict(x[:4]), method.predict(x[4:])]
    torch.testing.assert_close(torch.cat([p.score for p in parts]), out.score)  # no image depends on its batch


@pytest.mark.parametrize("name", METHODS)
def test_state_round_trip(name):
    method, play = build(name, SPLITS["universal"])
    list(train(method, play))
    x = torch.randn(5, IN, generator=torch.Generator().manual_seed(3))
    expected = method.eval().predict(x)
    cls = METHODS.get(name)
    torch.manual_seed(99)
    fresh = cls(Tiny(), method.split, cls.Hparams())  # never prepared: as a trained model is loaded for use
    fresh.load_state_dict(method.state_dict())
    slim = cls(Tiny(), method.split, cls.Hparams())  # what a saved model keeps is enough to predict
    load_method(slim, {k: v for k, v in method.state_dict().items() if not k.startswith(method.training_only)}, "test")
    for other in (fresh, slim):
        for ours, theirs in zip(other.eval().predict(x), expected):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", METHODS)
def test_training_continues_from_its_state(name):
    whole, play = build(name, SPLITS["universal"])
    list(train(whole, play))

    first, play = build(name, SPLITS["universal"])
    part = train(first, play)
    next(part)
    second, play_2 = build(name, SPLITS["universal"])
    second.load_state_dict(first.state_dict())
    play_2.load_state_dict(copy.deepcopy(play.state_dict()))
    for step, (source, target) in enumerate(feeds(second.split)):
        if step:
            play_2.begin(step)
            torch.manual_seed(step)
            second.update(source, target, step, play_2)
    for (key, ours), theirs in zip(second.state_dict().items(), whole.state_dict().values()):
        assert torch.equal(ours, theirs), key


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_weights_and_source_only_means_it(name):
    methods = []
    for shift in (0.0, 1.0):
        method, play = build(name, SPLITS["universal"])
        for step, (source, target) in enumerate(feeds(method.split)):
            play.begin(step)
            torch.manual_seed(step)
            method.update(source, target._replace(x=target.x + shift * not_if_used(method)), step, play)
        methods.append(method)
    for (key, ours), theirs in zip(methods[0].state_dict().items(), methods[1].state_dict().values()):
        assert torch.equal(ours, theirs), key


def not_if_used(method):
    """Other target images make no difference to a method that says it does not use them."""
    return 0.0 if method.uses_target else 1.0


@pytest.mark.parametrize("name", METHODS)
def test_hyper_parameters_say_where_they_come_from(name):
    import dataclasses

    cls = METHODS.get(name)
    assert issubclass(cls.Hparams, Hparams) and cls.presets
    for field in dataclasses.fields(cls.Hparams):
        assert field.metadata["source"] and field.metadata["help"], field.name
    for preset in cls.presets.values():
        cls.Hparams.parse(preset)
