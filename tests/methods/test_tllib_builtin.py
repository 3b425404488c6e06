"""tllib's losses behind our contract; everything but the messages needs the real tllib.

With ``TLLIB_EXT_REAL_TLLIB`` set to a checkout of it, the first test runs this file again with tllib importable.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_compat import REAL, hide, python
from test_method_sweep import IN, N_T, SPLITS, STEPS, Tiny, feeds

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.methods import METHODS, TLLIB_METHODS
from tllib_ext.methods.base import inverse_decay
from tllib_ext.methods.context import Context
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.training.checkpoint import load_method
from tllib_ext.training.players import SGDPlayers

HERE = importlib.util.find_spec("tllib") is not None
with_tllib = pytest.mark.skipif(not HERE, reason="tllib is not importable here; see TLLIB_EXT_REAL_TLLIB above")
SPLIT = SPLITS["universal"]


@pytest.mark.skipif(not REAL or HERE, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
def test_with_the_real_tllib():
    loops = str(Path(__file__).with_name("test_tllib_loops.py"))
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, loops, path=[REAL])
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_without_tllib_the_message_says_what_to_type(monkeypatch):
    hide(monkeypatch, "tllib")
    with pytest.raises(compat.Missing, match="tllib cannot be used.*type: pip install"):
        METHODS.get("tllib:dann")


def test_unknown_names_are_told_before_tllib_is_missed():
    with pytest.raises(UserError, match="unknown method 'tllib:dan2'.*did you mean 'tllib:dan'"):
        METHODS.get("tllib:dan2")


def build(name, split=SPLIT, **hp):
    cls = METHODS.get(f"tllib:{name}")
    torch.manual_seed(0)
    method = cls(Tiny(), split, cls.Hparams(**hp))
    method.audit = LossHistory(21, split.num_source, torch.device("cpu"))
    features = torch.randn(N_T, Tiny.out_features, generator=torch.Generator().manual_seed(5))
    method.prepare(Context(STEPS, 21, N_T, rate=0.3, target_features=lambda: features))
    return method.train(), SGDPlayers(method.players(), lr=0.01, total_steps=STEPS)


@with_tllib
@pytest.mark.parametrize("scenario", SPLITS)
@pytest.mark.parametrize("name", TLLIB_METHODS)
def test_contract(name, scenario):
    method, play = build(name, SPLITS[scenario])
    for step, (source, target) in enumerate(feeds(method.split)):
        play.begin(step)
        torch.manual_seed(step)
        log = method.update(source, target, step, play)
        assert "loss" in log and all(torch.isfinite(v) and v.ndim == 0 and not v.requires_grad for v in log.values())
    assert method.audit.visits.sum() == 17
    x = torch.randn(9, IN, generator=torch.Generator().manual_seed(3))
    out = method.eval().predict(x)
    assert out.probs.shape == (9, method.split.num_source) and out.score.shape == out.unknown.shape == (9,)
    torch.testing.assert_close(out.probs.sum(1), torch.ones(9))
    if method.threshold is not None:
        assert torch.equal(out.unknown, out.score > method.threshold)
    cls = METHODS.get(f"tllib:{name}")
    fresh = cls(Tiny(), method.split, cls.Hparams())
    state = method.state_dict()
    assert len({value.data_ptr() for value in state.values()}) == len(state), "the backbone is saved once"
    load_method(fresh, {k: v for k, v in state.items() if not k.startswith(method.training_only)}, "test")
    for ours, theirs in zip(fresh.eval().predict(x), out):
        assert torch.equal(ours, theirs)


def by_hand(name, loss_of, **hp):
    """One SGD over G (a tenth of the rate) and the rest, as tllib's scripts have it, on the same batches."""
    method, _ = build(name, **hp)
    rest = [p for key, p in method.named_parameters() if not key.startswith("backbone.")]
    opt = torch.optim.SGD([{"params": method.backbone.parameters()}, {"params": rest}], lr=0.0, momentum=0.9,
                          weight_decay=5e-4, nesterov=True)  # fmt: skip
    for step, (source, target) in enumerate(feeds(SPLIT)):
        for group, mult in zip(opt.param_groups, (0.1, 1.0)):
            group["lr"] = 0.01 * mult * inverse_decay(step / STEPS)
        torch.manual_seed(step)
        opt.zero_grad()
        loss_of(method, source, target, step).backward()
        opt.step()
    return method


def trained(name, **hp):
    method, play = build(name, **hp)
    for step, (source, target) in enumerate(feeds(SPLIT)):
        play.begin(step)
        torch.manual_seed(step)
        method.update(source, target, step, play)
    return method


def same(ours, theirs):
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


@with_tllib
def test_dann_is_the_script_with_its_schedule_stretched():
    def loss_of(method, source, target, step):
        z = method.net.bottleneck(method.backbone(torch.cat([source.x, target.x])))
        z_s, z_t = z[: len(source.x)], z[len(source.x) :]
        n = min(len(z_s), len(z_t))
        coefficient = 2 / (1 + torch.exp(torch.tensor(-20.0 * step / STEPS))) - 1
        both = torch.cat([z_s[:n], z_t[:n]])
        both = both.detach() * (1 + coefficient) - both * coefficient  # forward both, backward -coefficient
        d = method.loss.domain_discriminator(both)
        domain = torch.cat([torch.ones(n, 1), torch.zeros(n, 1)])
        return F.cross_entropy(method.net.head(z_s), source.y) + F.binary_cross_entropy(d, domain)

    same(trained("dann"), by_hand("dann", loss_of))


@with_tllib
def test_pada_weighs_classes_by_how_often_the_target_is_taken_for_them():
    method, play = build("pada", update_share=1 / STEPS)
    for step, (source, target) in enumerate(feeds(SPLIT)):
        play.begin(step)
        if step == 1:
            method.eval()
            logits = method.net(method.context.target_features())
            method.train()
            gamma = (logits / 0.1).softmax(1).mean(0)
            weights = gamma / gamma.max()
        before = method.class_weight.clone()
        method.update(source, target, step, play)
        if step == 0:
            assert torch.equal(before, torch.ones(SPLIT.num_source))
        if step == 1:
            torch.testing.assert_close(method.class_weight, weights.detach())
            ce = torch.rand(6)
            y = torch.tensor([0, 1, 2, 3, 0, 1])
            expected = sum(weights[k] * c for k, c in zip(y, ce)) / sum(weights[k] for k in y)
            torch.testing.assert_close(method.source_loss(ce, y), expected.detach())
    assert method.net.training and method.backbone.training


@with_tllib
def test_osbp_deceives_its_own_classifier_on_the_target():
    method, _ = build("osbp")
    source, target = next(feeds(SPLIT))
    torch.manual_seed(0)
    _, (y_t, _) = method.outputs(source.x, target.x)
    p = y_t.softmax(1)[:, SPLIT.unknown]
    loss = method.transfer(y_t, y_t, y_t, y_t, source.y)["unknown"]
    torch.testing.assert_close(loss, -(0.5 * torch.log(p + 1e-6) + 0.5 * torch.log(1 - p + 1e-6)).mean())
    head, g = method.net.head.weight, method.backbone[0].weight
    descend_head, descend_g = torch.autograd.grad(loss, (head, g), retain_graph=True)
    torch.manual_seed(0)
    plain = method.net(method.backbone(source.x)), method.net(method.backbone(target.x))[0]  # the same dropout, no reversal
    p = plain[1].softmax(1)[:, SPLIT.unknown]
    loss = -(0.5 * torch.log(p + 1e-6) + 0.5 * torch.log(1 - p + 1e-6)).mean()
    for reversed_, straight, sign in zip((descend_head, descend_g), torch.autograd.grad(loss, (head, g)), (1, -1)):
        torch.testing.assert_close(reversed_, sign * straight, rtol=1e-3, atol=1e-5)


@with_tllib
def test_mcd_plays_the_three_steps():
    method, play = build("mcd")
    source, target = next(feeds(SPLIT))
    moved = []
    descend = play.descend

    def spy(terms, *names):
        before = {n: p.detach().clone() for n, p in method.named_parameters()}
        out = descend(terms, *names)
        changed = {n.split(".")[0] for n, p in method.named_parameters() if not torch.equal(before[n], p)}
        moved.append((sorted(terms), changed))
        return out

    play.descend = spy
    play.begin(0)
    method.update(source, target, 0, play)
    assert moved == [(["balance", "source"], {"backbone", "heads"}), (["apart", "balance", "source"], {"heads"}),
                     *[(["together"], {"backbone"})] * 4]  # fmt: skip


@with_tllib
def test_iwan_and_afn_and_mdd_weights():
    source, target = next(feeds(SPLIT))
    for name, weights in (("iwan", {"first": 4.5, "second": 3.0, "entropy": 0.1}), ("afn", {"norm": 0.05, "entropy": 0.1}),
                          ("mdd", {"disparity": 1.0})):  # fmt: skip
        unit, _ = build(name)
        for f in ("trade_off", "trade_off_entropy"):
            if hasattr(unit.hparams, f):
                setattr(unit.hparams, f, 1.0)
        method, _ = build(name)
        terms = []
        for m in (method.eval(), unit.eval()):  # no dropout
            m.net.training = True  # but logits and features both
            y, f = m.net(m.backbone(source.x[:5]))
            y_t, f_t = m.net(m.backbone(target.x))
            terms.append(m.transfer(y, f, y_t, f_t, source.y[:5]))
        for key, weight in weights.items():
            ratio = (terms[0][key] / terms[1][key]).item()
            assert ratio == pytest.approx(weight / (1.5 if key == "first" else 1.0), rel=1e-4), (name, key)
