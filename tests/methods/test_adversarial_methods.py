"""DANN, TCL, ETN, UAN and STA against their equations written out on small numbers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tllib_ext.errors import UserError
from tllib_ext.methods import dann, etn, sta, tcl, uan
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.dann import Dann, DannHparams
from tllib_ext.methods.etn import Etn, EtnHparams, leaky_bce, leaky_logit
from tllib_ext.methods.sta import BinaryClassifiers, Sta, StaHparams, extremes
from tllib_ext.methods.tcl import Tcl, TclHparams, curriculum
from tllib_ext.methods.uan import Uan, UanHparams, scale_weights
from tllib_ext.modules.adversarial import (
    DomainDiscriminator,
    QuickDropout,
    domain_loss,
    entropy,
    gradient_reverse,
    grl_coefficient,
)
from tllib_ext.split import LabelSplit
from tllib_ext.training.players import SGDPlayers

SPLIT = LabelSplit(["a", "b"], ["c"], ["u", "v"])  # K = 3
K, IN, STEPS = 3, 4, 100
ALL = [Dann, Tcl, Etn, Uan, Sta]


class Tiny(nn.Linear):
    out_features = 5

    def __init__(self):
        super().__init__(IN, 5)


def batches(size_s=6, size_t=4, scale=1.0):
    g = torch.Generator().manual_seed(0)
    source = Batch(scale * torch.randn(size_s, IN, generator=g), torch.arange(size_s) % K, torch.arange(size_s))
    return source, Batch(scale * torch.randn(size_t, IN, generator=g), None, torch.arange(size_t))


class Says(nn.Module):
    """A layer that says the same whatever it is asked."""

    def __init__(self, *answer):
        super().__init__()
        self.answer = torch.tensor(answer)

    def forward(self, x):
        return self.answer[: len(x)]


class Spectator:
    """A ``play`` that lets nobody move and remembers what was asked."""

    def descend(self, terms, *names):
        self.terms, self.names = terms, set(names)
        return sum(terms.values()).detach()


def build(cls, steps=STEPS, **values):
    torch.manual_seed(0)
    method = cls(Tiny(), SPLIT, cls.Hparams(bottleneck=4, hidden=8, **values))
    method.prepare(Context(steps=steps))
    return method.eval()  # no dropout, no batch statistics unless a test wants them


def observed_terms(method, step, source=None, target=None):
    """The terms of one update, as floats, and who would have moved."""
    play = Spectator()
    if source is None:
        source, target = batches()
    log = method.update(source, target, step, play)
    assert all(torch.isfinite(value) for value in log.values())
    return {name: value.item() for name, value in play.terms.items()}, play


def array(tensor):
    return tensor.detach().double().numpy()


def softmax(o):
    e = np.exp(o - o.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(o):
    return 1 / (1 + np.exp(-o))


def h(p):
    return -(p * np.log(p)).sum(-1)


def parts(method, x):
    """z, logits and discriminator logits of ``x`` in evaluation mode, as arrays."""
    z = method.bottleneck(method.backbone(x))
    return z, array(method.head(z)), array(method.discriminator(z))


# the pieces


def test_gradient_reversal_turns_the_gradient_and_scales_it():
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    y = gradient_reverse(x, 0.25)
    assert torch.equal(y, x)
    (3 * y[0] + 5 * y[1]).backward()
    assert x.grad.tolist() == [-0.75, -1.25]


def test_reversal_coefficient_follows_the_published_schedules():
    for i in (0, 700, 5000, 20000):
        tllib = 2 / (1 + math.exp(-i / 1000)) - 1
        assert grl_coefficient(i / 20000, 20) == pytest.approx(tllib)
        easydl_twice_per_step = 2 / (1 + math.exp(-10 * 2 * i / 10000)) - 1
        assert grl_coefficient(i / 20000, 40) == pytest.approx(easydl_twice_per_step)
    for i in (0, 300, 1900):
        assert grl_coefficient(i / 1900, 3.8) == pytest.approx(2 / (1 + math.exp(-10 * 2 * i / 10000)) - 1)


@pytest.mark.parametrize("style, kinds", [
    ("batch_norm", ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"]),
    ("dropout", ["Linear", "ReLU", "QuickDropout"] * 2 + ["Linear"]),
])  # fmt: skip
def test_discriminator_in_both_styles(style, kinds):
    d = DomainDiscriminator(4, 8, style)
    assert [type(layer).__name__ for layer in d] == kinds
    assert [tuple(layer.weight.shape) for layer in d if isinstance(layer, nn.Linear)] == [(8, 4), (8, 8), (1, 8)]
    assert d(torch.randn(3, 4)).shape == (3,)


def test_dropout_keeps_the_share_and_the_mean_and_is_nothing_in_evaluation():
    x = torch.full((200, 100), 3.0, requires_grad=True)
    layer = QuickDropout(0.2)
    torch.manual_seed(0)
    y = layer(x)
    assert set(y.unique().tolist()) == {0.0, 3.75} and (y == 0).float().mean().item() == pytest.approx(0.2, abs=0.02)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(y > 0, 1.25, 0.0))
    torch.manual_seed(0)
    assert torch.equal(layer(x), y) and torch.equal(layer.eval()(x), x)


def test_domain_loss_and_entropy_are_finite_where_probabilities_are_not():
    d = torch.tensor([-1.5, 0.3])
    np.testing.assert_allclose(array(domain_loss(d, True)), -np.log(sigmoid(array(d))), rtol=1e-6)
    np.testing.assert_allclose(array(domain_loss(d, False)), -np.log(1 - sigmoid(array(d))), rtol=1e-6)
    assert domain_loss(torch.tensor([-300.0]), True).item() == 300
    o = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    entropy(o).sum().backward()
    assert torch.isfinite(o.grad).all()
    np.testing.assert_allclose(array(entropy(torch.tensor([[1.0, 0.0, 2.0]]))), h(softmax(np.array([[1.0, 0, 2]]))), rtol=1e-6)


# DANN


def test_dann_terms():
    method = build(Dann, trade_off=0.7)
    source, target = batches()
    terms, play = observed_terms(method, 30)
    _, o_s, d_s = parts(method, source.x)
    _, _, d_t = parts(method, target.x)
    ce = -np.log(softmax(o_s))[range(6), source.y.numpy()]
    adversarial = 0.5 * (-np.log(sigmoid(d_s)).mean() - np.log(1 - sigmoid(d_t)).mean())
    assert terms == pytest.approx({"source": ce.mean(), "adversarial": 0.7 * adversarial}, rel=1e-5)
    assert play.names == {"G", "C", "D"}


@pytest.mark.parametrize("cls, module", [(Dann, dann), (Tcl, tcl), (Etn, etn), (Uan, uan), (Sta, sta)])
def test_features_deceive_what_the_discriminator_learns(cls, module, monkeypatch):
    """One backward: the discriminator's gradient is the plain one, the bottleneck's is -lambda times the plain one."""
    grads = {}
    for mode in ("reversed", "plain"):
        if mode == "plain":
            monkeypatch.setattr(module, "gradient_reverse", lambda z, coefficient: z)
        method = build(cls)
        play = Spectator()
        method.update(*batches(), 70, play)
        weights = [method.bottleneck.weight if isinstance(method.bottleneck, nn.Linear) else method.bottleneck[0].weight]
        weights.append(method.discriminator[0].weight)
        grads[mode] = torch.autograd.grad(play.terms["adversarial"], weights)
    share, gamma = (0.7, method.hparams.grl_gamma) if cls is not Sta else ((0.7 - 900 / 2800) / (1900 / 2800), 3.8)
    coefficient = 2 / (1 + math.exp(-gamma * share)) - 1
    torch.testing.assert_close(grads["reversed"][0], -coefficient * grads["plain"][0])
    torch.testing.assert_close(grads["reversed"][1], grads["plain"][1])
    assert grads["plain"][0].abs().max() > 0


@pytest.mark.parametrize("cls, module", [(Dann, dann), (Tcl, tcl), (Etn, etn), (Uan, uan), (Sta, sta)])
def test_schedules_are_shares_of_the_run(cls, module, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "grl_coefficient", lambda share, gamma: seen.append((share, gamma)) or 0.0)
    for steps in (100, 5000):
        method = build(cls, steps=steps)
        method.update(*batches(), steps * 3 // 5, Spectator())
    assert seen[0] == pytest.approx(seen[1])


# TCL


def test_curriculum_by_hand():
    # age = -log 0.3 - 0.1 log 0.5 = 1.2040 + 0.0693 = 1.2733
    ce = torch.tensor([1.20, 1.21, 1.27, 1.28, 0.00, 0.9])
    d = torch.tensor([0.5, 0.5, 1e-6, 1e-6, 0.9999, 0.99]).logit()
    # CE - 0.1 log(1 - d): 1.2693, 1.2793, 1.2700, 1.2800, 0.9210, 1.3605
    assert curriculum(ce, d, 0.1, 0.3, 0.5).tolist() == [1, 0, 1, 0, 1, 0]
    assert curriculum(torch.zeros(1), torch.tensor([1e5]), 0.1, 0.3, 0.5).tolist() == [0]  # d = 1: no infinity, just far


def test_tcl_terms_before_and_after_the_warm_up():
    method = build(Tcl, tau_y=0.33)  # untrained: about half of the batch is easier than that
    source, target = batches()
    z, o_s, d_s = parts(method, source.x)
    _, o_t, d_t = parts(method, target.x)
    ce = -np.log(softmax(o_s))[range(6), source.y.numpy()]
    age = -math.log(0.33) - 0.1 * math.log(0.5)
    easy = (ce - 0.1 * np.log(1 - sigmoid(d_s)) < age).astype(float)
    assert 0 < easy.sum() < 6
    for step, w in ((14, np.ones(6)), (15, easy)):
        terms, play = observed_terms(method, step)
        domain = (-(w * np.log(sigmoid(d_s))).sum() - np.log(1 - sigmoid(d_t)).sum()) / 10
        expected = {"source": (w * ce).sum() / 6, "adversarial": domain, "entropy": 0.1 * h(softmax(o_t)).mean()}
        assert terms == pytest.approx(expected, rel=1e-5)


def test_tcl_drops_everything_and_stays_finite():
    method = build(Tcl, tau_y=0.999999)
    play = SGDPlayers(method.players(), lr=0.01, total_steps=STEPS)
    play.begin(50)
    log = method.train().update(*batches(), 50, play)
    assert log["kept"] == 0 and log["loss"] == 0
    assert all(torch.isfinite(p).all() for p in method.parameters())


def test_tcl_frozen_backbone_keeps_weights_and_mode():
    method = build(Tcl, freeze=True, init="normal").train()
    assert method.training and not method.backbone.training and "G" not in method.players()
    before = method.backbone.weight.clone(), method.bottleneck.weight.clone()
    play = SGDPlayers(method.players(), lr=0.1, total_steps=STEPS)
    play.begin(0)
    method.update(*batches(), 0, play)
    assert torch.equal(method.backbone.weight, before[0]) and not torch.equal(method.bottleneck.weight, before[1])
    assert method.bottleneck.bias.mean().item() == pytest.approx(0.1, abs=0.05)
    with pytest.raises(UserError, match="default or normal"):
        TclHparams(init="small")


# ETN


def test_leaky_softmax_by_hand():
    o = torch.tensor([[1.0, 0.0, -2.0], [0.5, 3.0, 0.1]])
    a = np.exp(array(o)) / (3 + np.exp(array(o)).sum(-1, keepdims=True))
    np.testing.assert_allclose(sigmoid(array(leaky_logit(o))), a.sum(-1), rtol=1e-6)
    y = torch.tensor([2, 1])
    one_hot = np.eye(3)[y.numpy()]
    bce = -(one_hot * np.log(a) + (1 - one_hot) * np.log(1 - a)).sum(-1)
    np.testing.assert_allclose(array(leaky_bce(o, y)), bce, rtol=1e-6)
    wild = torch.tensor([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4]], requires_grad=True)
    loss = leaky_bce(wild, y).sum() + leaky_logit(wild).sum()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(wild.grad).all()


def test_etn_terms():
    method = build(Etn)
    source, target = batches()
    terms, play = observed_terms(method, 40)
    z_s, o_s, d_s = parts(method, source.x)
    z_t, o_t, d_t = parts(method, target.x)
    a_s, a_t = (np.exp(array(method.auxiliary(z))) for z in (z_s, z_t))
    a_s, a_t = a_s / (3 + a_s.sum(-1, keepdims=True)), a_t / (3 + a_t.sum(-1, keepdims=True))
    w = 1 - a_s.sum(-1)
    w = w / w.mean()
    ce = -np.log(softmax(o_s))[range(6), source.y.numpy()]
    one_hot = np.eye(3)[source.y.numpy()]
    assert terms == pytest.approx({
        "source": (w * ce).mean(),
        "adversarial": -(w * np.log(sigmoid(d_s))).mean() - np.log(1 - sigmoid(d_t)).mean(),
        "entropy": 0.2 * h(softmax(o_t)).mean(),
        "aux_domain": 10 * (-np.log(a_s.sum(-1)).mean() - np.log(1 - a_t.sum(-1)).mean()),
        "aux_class": -(one_hot * np.log(a_s) + (1 - one_hot) * np.log(1 - a_s)).sum(-1).mean(),
    }, rel=1e-5)  # fmt: skip
    for name in ("aux_domain", "aux_class"):  # the auxiliary head reads z and never moves it
        grads = torch.autograd.grad(play.terms[name], [method.bottleneck.weight, method.auxiliary[0].weight],
                                    allow_unused=True, retain_graph=True)  # fmt: skip
        assert grads[0] is None and grads[1].abs().max() > 0


def test_etn_survives_an_auxiliary_head_that_is_sure_of_every_sample():
    method = build(Etn)
    nn.init.constant_(method.auxiliary[-1].bias, 500.0)  # A = 1, so every 1 - A is 0
    terms, _ = observed_terms(method, 40)
    assert terms["source"] == 0 and all(map(math.isfinite, terms.values()))


# UAN


def test_uan_terms_and_its_two_temperatures():
    method = build(Uan)
    source, target = batches()
    terms, _ = observed_terms(method, 40)
    z_s, o_s, d_s = parts(method, source.x)
    z_t, o_t, d_t = parts(method, target.x)
    near_s, near_t = sigmoid(array(method.similarity(z_s))), sigmoid(array(method.similarity(z_t)))
    w_s = h(softmax(o_s / 10)) / math.log(3) - near_s
    w_t = near_t - h(softmax(o_t)) / math.log(3)
    v_s, v_t = ((w - w.min()) / (w.max() - w.min()) for w in (w_s, w_t))
    v_s, v_t = v_s / v_s.mean(), v_t / v_t.mean()
    assert terms == pytest.approx({
        "source": -np.log(softmax(o_s))[range(6), source.y.numpy()].mean(),
        "adversarial": -(v_s * np.log(sigmoid(d_s))).mean() - (v_t * np.log(1 - sigmoid(d_t))).mean(),
        "similarity": -np.log(near_s).mean() - np.log(1 - near_t).mean(),
    }, rel=1e-4)  # fmt: skip
    prediction = method.predict(target.x)
    np.testing.assert_allclose(array(prediction.score), -w_t, rtol=1e-4)
    assert prediction.unknown.tolist() == (w_t < -0.5).tolist() and method.threshold == 0.5


def test_equal_weights_count_the_same():
    assert scale_weights(torch.full((3,), -0.7)).tolist() == [1, 1, 1]
    scaled = scale_weights(torch.tensor([-0.5, 0.0, -0.25, 0.5]))
    np.testing.assert_allclose(array(scaled), np.array([0, 0.5, 0.25, 1]) / 0.4375, rtol=1e-6)


def test_double_softmax_cannot_learn_below_its_floor():
    source, _ = batches()
    for double, floor in ((True, math.log(1 + 2 / math.e)), (False, 0.0)):
        method = build(Uan, double_softmax=double)
        method.head = Says(*(200 * torch.eye(K)[source.y]).tolist())  # sure and right
        terms, _ = observed_terms(method, 40)
        assert terms["source"] == pytest.approx(floor, abs=1e-6)


# STA


def test_binary_classifiers_are_separate_networks():
    torch.manual_seed(0)
    b = BinaryClassifiers(5, K, 4).eval()
    f = torch.randn(6, 5)
    linear, norm, _ = b.hidden
    for k in range(K):
        own = slice(4 * k, 4 * k + 4)
        hidden = array(f) @ array(linear.weight[own]).T + array(linear.bias[own])
        hidden = hidden / np.sqrt(1 + norm.eps)  # fresh batch norm in evaluation mode
        hidden = np.where(hidden > 0, hidden, 0.2 * hidden)
        np.testing.assert_allclose(array(b(f))[:, k], hidden @ array(b.out.weight[k, :, 0]) + array(b.out.bias[k]), atol=1e-6)


def test_extremes_of_the_whole_batch_whoever_holds_it(monkeypatch):
    score = torch.tensor([0.3, 0.9, 0.1, 0.5] * 8) + torch.arange(32) / 1e4
    low, high = extremes(score)
    assert low.nonzero().ravel().tolist() == [2, 6] and high.nonzero().ravel().tolist() == [25, 29]
    for r, part in enumerate(score.split(16)):
        monkeypatch.setattr(sta, "gather_rows", lambda _: score)
        monkeypatch.setattr(sta, "rank", lambda r=r: r)
        mine = extremes(part)
        assert torch.equal(mine[0], low.split(16)[r]) and torch.equal(mine[1], high.split(16)[r])
    monkeypatch.undo()
    assert [mask.sum() for mask in extremes(torch.zeros(5))] == [1, 1]  # ties, small batches: never nobody


@pytest.mark.parametrize("score", ["max", "sum"])
def test_sta_stage_one(score):
    method = build(Sta, score=score)
    source, target = batches(6, 32)
    b_s, b_t = (sigmoid(array(method.binary(method.backbone(x)))) for x in (source.x, target.x))
    one_hot = np.eye(3)[source.y.numpy()]
    binary = -(one_hot * np.log(b_s) + (1 - one_hot) * np.log(1 - b_s)).sum(-1).mean()
    ce = -np.log(softmax(parts(method, source.x)[1]))[range(6), source.y.numpy()].mean()

    terms, play = observed_terms(method, 10, source, target)
    assert terms == pytest.approx({"source": ce, "binary": binary}, rel=1e-5) and play.names == {"G", "C", "B"}

    terms, play = observed_terms(method, 20, source, target)
    order = np.argsort(b_t.max(-1) if score == "max" else b_t.sum(-1))
    s = softmax(array(method.separator(method.backbone(target.x))))
    separator = -np.log(s[order[-2:], 0]).mean() - np.log(s[order[:2], 1]).mean()
    assert terms == pytest.approx({"source": ce, "binary": binary, "separator": separator}, rel=1e-5)
    assert play.names == {"G", "C", "B", "S"}
    grad = torch.autograd.grad(play.terms["separator"], [method.backbone.weight], allow_unused=True)
    assert grad == (None,), "S learns from features and never moves them"


def test_sta_stage_two():
    method = build(Sta)
    source, target = batches(6, 32)
    terms_2a, play = observed_terms(method, 60, source, target)
    terms_2b, _ = observed_terms(method, 90, source, target)
    z_s, o_s, d_s = parts(method, source.x)
    z_t, o_t, d_t = parts(method, target.x)
    w = softmax(array(method.separator(method.backbone(target.x))))[:, 0]
    expected = {
        "source": -np.log(softmax(o_s))[range(6), source.y.numpy()].mean(),
        "adversarial": 0.3 * (-np.log(sigmoid(d_s)).mean() - (w * np.log(1 - sigmoid(d_t))).mean()),
        "entropy": 0.1 * (w * h(softmax(o_t))).mean(),
    }
    assert terms_2a == pytest.approx(expected, rel=1e-5)
    expected["unknown"] = 0.3 * -np.log(softmax(o_t)[np.argsort(w)[:2], 3]).mean()
    assert terms_2b == pytest.approx(expected, rel=1e-5)
    assert play.names == {"G", "C", "D"}


def test_sta_stages_have_the_published_proportions():
    method = build(Sta, steps=2800)
    stages = {499: ["binary"], 500: ["binary", "separator"], 899: ["binary", "separator"], 900: ["adversarial", "entropy"],
              2399: ["adversarial", "entropy"], 2400: ["adversarial", "entropy", "unknown"]}  # fmt: skip
    for step, names in stages.items():
        terms, _ = observed_terms(method, step)
        assert sorted(terms) == sorted([*names, "source"]), step


def test_sta_rounds_and_frozen_stage_one():
    method = build(Sta, rounds=2, stage1_backbone="frozen")
    _, play = observed_terms(method, 55)  # 5 % into the second round
    assert play.names == {"C", "B"}
    assert torch.autograd.grad(play.terms["source"], [method.backbone.weight], allow_unused=True) == (None,)
    with pytest.raises(UserError, match="max or sum"):
        StaHparams(score="mean")


def test_sta_predicts_by_argmax_over_k_plus_one():
    method = build(Sta)
    logits = torch.tensor([[4.0, 1.0, 0.0, 3.9], [4.0, 1.0, 0.0, 4.1], [0.0, 0.0, 0.0, 0.1]])
    method.head = Says(*logits.tolist())
    prediction = method.predict(torch.zeros(3, IN))
    assert prediction.unknown.tolist() == [False, True, True]
    np.testing.assert_allclose(array(prediction.score), array(logits)[:, 3] - array(logits)[:, :3].max(1), rtol=1e-5)
    p = softmax(array(logits))
    np.testing.assert_allclose(array(prediction.probs), p[:, :3] / p[:, :3].sum(-1, keepdims=True), rtol=1e-5)


# all


@pytest.mark.parametrize("cls", [Dann, Tcl, Etn, Uan])
def test_an_undecided_image_scores_higher_than_a_sure_one(cls):
    method = build(cls)
    method.head = Says([9.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    sure, undecided = method.predict(torch.zeros(2, IN)).score
    assert undecided > sure


def test_uan_image_that_looks_like_no_source_image_scores_higher():
    method = build(Uan)
    method.similarity = Says(3.0, -3.0)
    near, far = method.predict(torch.ones(2, IN)).score
    assert far > near


@pytest.mark.parametrize("scale", [0.0, 1e4])
@pytest.mark.parametrize("cls", ALL)
def test_constant_and_enormous_inputs_stay_finite(cls, scale):
    """Equal features give equal weights everywhere; enormous ones saturate every probability."""
    source, target = batches(5, 3, scale)
    method = build(cls).train()
    play = SGDPlayers(method.players(), lr=1e-6, total_steps=STEPS)
    for step in (0, 20, 40, 95):
        play.begin(step)
        log = method.update(source, target, step, play)
        assert all(torch.isfinite(value) for value in log.values())
    assert all(torch.isfinite(p).all() for p in method.parameters())
    assert all(torch.isfinite(value.float()).all() for value in method.eval().predict(target.x))


@pytest.mark.parametrize("cls, hparams", [(Dann, DannHparams), (Tcl, TclHparams), (Etn, EtnHparams), (Uan, UanHparams)])
def test_a_method_learns_separable_classes(cls, hparams):
    """A hundred steps on three separable blobs: the source loss falls and the target's blobs get their names."""
    torch.manual_seed(0)
    centres = 4 * torch.eye(3, IN)
    method = cls(Tiny(), SPLIT, hparams(bottleneck=8, hidden=16)).train()
    method.prepare(Context(steps=100))
    play = SGDPlayers(method.players(), lr=0.05, total_steps=100)
    g = torch.Generator().manual_seed(0)
    losses = []
    for step in range(100):
        y_s, y_t = torch.arange(12) % 3, torch.arange(9) % 3
        source = Batch(centres[y_s] + 0.3 * torch.randn(12, IN, generator=g), y_s, torch.arange(12))
        target = Batch(centres[y_t] + 0.5 + 0.3 * torch.randn(9, IN, generator=g), None, torch.arange(9))
        play.begin(step)
        losses.append(method.update(source, target, step, play)["loss"])
    assert losses[-1] < 0.3 * losses[0]
    assert method.eval().predict(centres + 0.5).probs.argmax(-1).tolist() == [0, 1, 2]
