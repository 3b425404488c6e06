"""The method against a loop written out from the authors' order of operations, and its invariants."""

import math

import pytest
import torch
import torch.nn.functional as F
from plain_loop import load_loop, run_loop
from torch import nn

from tllib_ext.alignment.divergence import cross_divergence
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import Divergence, DivergenceHparams
from tllib_ext.split import LabelSplit
from tllib_ext.training.players import SGDPlayers

K, B, DROP, STEPS = 5, 12, 0.25, 3
SPLIT = LabelSplit([f"c{i}" for i in range(3)], ["p0", "p1"], ["u0"])


class Tiny(nn.Sequential):
    """A backbone with batch norm."""

    out_features = 8

    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))


def batches(scale=1.0, seed=1):
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        source = Batch(torch.randn(B, 6, generator=g), torch.randint(K, (B,), generator=g), torch.arange(B))
        yield source, Batch(scale * torch.randn(B, 6, generator=g), None, torch.arange(B))


def build(seed=0, **hp):
    torch.manual_seed(seed)
    method = Divergence(Tiny(), SPLIT, DivergenceHparams(**{"warmup": 0, "drop_rate": DROP, **hp}))
    with torch.no_grad():  # heads that nearly agree: some target samples look known from the first step on
        first, second = (head.weight for head in method.heads.heads)
        second.copy_(first + 0.05 * torch.randn(first.shape))
    method.prepare(Context(steps=STEPS))
    return method.train(), SGDPlayers(method.players(), lr=0.05, total_steps=STEPS, schedule=method.lr_factor)


def probabilities(head, f):
    return F.softmax(F.linear(F.normalize(f, dim=1), head) / 0.05, dim=1)


def longhand(paper=False, code=False, known_margin=1.0):
    """Eight forwards, three optimisers, probabilities and logarithms: nothing of the package but the initial weights."""
    method, _ = build()
    net, heads = method.backbone, [head.weight for head in method.heads.heads]
    delta, m, keep = math.log(K), 1.0, 9
    eta = 1.0 if paper else 0.05
    sgd = dict(lr=1.0, momentum=0.9, weight_decay=5e-4, nesterov=True)
    opt_g = torch.optim.SGD(net.parameters(), **sgd)
    opt_c = [torch.optim.SGD([w], **sgd) for w in heads]

    def source_values(f, y):
        p1, p2 = (probabilities(w, f) for w in heads)
        ce = -torch.log(p1[range(B), y]) - torch.log(p2[range(B), y])
        kl = (p1 * (p1 / p2).log()).sum(1) + (p2 * (p2 / p1).log()).sum(1)
        return ce + 0.1 * kl

    def crs_of(f):
        p1, p2 = (probabilities(w, f) for w in heads)
        return -(p1 * p2.log()).sum(1) - (p2 * p1.log()).sum(1)

    def clamped(crs):
        return crs if paper else crs.clamp(max=2 * delta)

    for step, (s, t) in enumerate(batches()):
        # The authors' loop runs steps 0..S and divides by S, that is by one less than the number of its steps.
        rate = 0.05 * (1 + 10 * step / (STEPS - 1 if code else STEPS)) ** -0.75
        opt_g.param_groups[0]["lr"] = 0.1 * rate
        for o in opt_c:
            o.param_groups[0]["lr"] = rate
        with torch.no_grad():
            for w in heads:
                w /= w.norm(dim=1, keepdim=True)
        # A
        f_s, f_t = net(s.x), net(t.x)
        values = source_values(f_s, s.y)
        chosen = values.argsort()[:keep]
        p1, p2 = (probabilities(w, f_t) for w in heads)
        crs = crs_of(f_t)
        if paper:
            ent = -(p1 * p1.log()).sum(1) - (p2 * p2.log()).sum(1)
            tilde = [-(v - delta).abs() * ((v - delta).abs() > m) for v in (crs, ent)]
            loss = values[chosen].mean() + tilde[0].mean() + tilde[1].mean()
        else:
            valid = crs[crs < 2 * delta]
            t_crs = -(valid - delta).abs().clamp(m, 2).mean() if len(valid) else 0.0
            mean = (p1 + p2) / 2
            ent = -(mean * torch.log(mean + 1e-5)).sum(1)
            t_ent = -(ent - delta / 2).abs().clamp(min=m / 2).mean()
            loss = values[chosen].mean() + eta * t_crs + eta * t_ent
        known = (crs < delta - known_margin).detach()
        for o in (opt_g, *opt_c):
            o.zero_grad()
        loss.backward()
        for o in (opt_g, *opt_c):
            o.step()
        # B: target first, then source
        crs_b = clamped(crs_of(net(t.x)))
        values = source_values(net(s.x), s.y)
        if not paper:
            chosen = values.argsort()[:keep]
        loss = values[chosen].mean() - eta * crs_b.mean()
        for o in opt_c:
            o.zero_grad()
        loss.backward()
        for o in opt_c:
            o.step()
        # C
        for _ in range(4 if known.any() or code else 0):
            # With nothing known the code's mean is NaN and its gradient 0: the step is weight decay and momentum.
            loss = eta * (clamped(crs_of(net(t.x)))[known].sum() / (B if paper else known.sum()))
            opt_g.zero_grad()
            loss.backward()
            opt_g.step()
    return method


def run(method, play, scale=1.0):
    seen = []
    for step, (s, t) in enumerate(batches(scale)):
        play.begin(step)
        seen.append(float(method.update(s, t, step, play)["known"]))
    return seen


@pytest.mark.parametrize("preset", ["default", "code", "paper"])
def test_same_parameters_as_longhand(preset):
    method, play = build(**{**Divergence.presets[preset], "warmup": 0})
    seen = run(method, play)
    assert 0 < sum(seen) < STEPS  # the masks are neither empty nor full, or the test would not test Step C
    same(method, longhand(paper=preset == "paper", code=preset == "code"))


@pytest.mark.parametrize("preset", ["default", "code"])
def test_an_empty_step_c_is_skipped_or_steps_on_weight_decay(preset):
    method, play = build(**{**Divergence.presets[preset], "warmup": 0, "known_margin": 9.0})
    assert run(method, play) == [0.0] * STEPS
    same(method, longhand(code=preset == "code", known_margin=9.0))


def test_ten_steps_of_the_tllib_example_are_the_longhand(monkeypatch):
    monkeypatch.setattr("test_divergence_longhand.STEPS", 10)
    loop = load_loop(monkeypatch)
    loop.DELTA = math.log(K)
    torch.set_default_dtype(torch.float64)
    try:
        method, play = build()
        found = run_loop(loop, method, [(s.x, s.y, t.x) for s, t in batches()], "default", DROP, lr=0.05)
        seen, expected = run(method, play), longhand().state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert 0 < sum(seen) < 10
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9)
        torch.testing.assert_close(method.state_dict()[name], expected[name], rtol=0, atol=1e-9)


def test_presets_of_the_schedule():
    default, code = (Divergence(Tiny(), SPLIT, Divergence.configure(name, {})) for name in ("default", "code"))
    assert default.lr_factor(5000, 5001) == pytest.approx((1 + 10 * 5000 / 5001) ** -0.75)
    assert code.lr_factor(5000, 5001) == pytest.approx(11**-0.75)
    assert code.lr_factor(0, 1) == 1.0
    code.prepare(Context(steps=1000))
    assert code.warmup == 101


def same(method, expected):
    for (name, ours), theirs in zip(method.state_dict().items(), expected.state_dict().values()):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")


def test_warm_up_is_plain_training_and_can_be_left():
    method, play = build(warmup=1)
    (s, t), (s2, t2), _ = batches()
    play.begin(0)
    assert "kept" not in method.update(s, t, 0, play)
    assert float(method.update(s2, t2, 1, play)["kept"]) == pytest.approx(0.75)


def test_default_warm_up_scales_with_the_run():
    method, _ = build(warmup=None)
    for steps, expected in ((5001, 101), (1000, 40), (50, 2)):
        method.prepare(Context(steps=steps))
        assert method.warmup == expected


class Spy:
    """Players that remember which parameters each descent changed."""

    def __init__(self, method, play):
        self.method, self.play, self.moved = method, play, []

    def read_flag(self, flag):
        return self.play.read_flag(flag)

    def accumulate(self, terms, *names):
        self.play.accumulate(terms, *names)

    def descend(self, terms, *names):
        before = {n: p.detach().clone() for n, p in self.method.named_parameters()}
        out = self.play.descend(terms, *names)
        after = dict(self.method.named_parameters())
        changed = {n.split(".")[0] for n in before if not torch.equal(before[n], after[n])}
        self.moved.append((names, changed))
        return out


def test_b_leaves_g_and_c_leaves_heads():
    method, play = build()
    spy = Spy(method, play)
    s, t = next(batches())
    play.begin(0)
    method.update(s, t, 0, spy)
    assert [names for names, _ in spy.moved] == [("G", "C"), ("C",)] + [("G",)] * 4
    assert [changed for _, changed in spy.moved] == [{"backbone", "heads"}, {"heads"}] + [{"backbone"}] * 4


@pytest.mark.parametrize("n", [0, 1, 3])
def test_step_c_is_repeated_n_times(n):
    method, play = build(n=n)
    spy = Spy(method, play)
    s, t = next(batches())
    play.begin(0)
    method.update(s, t, 0, spy)
    assert [names for names, _ in spy.moved] == [("G", "C"), ("C",)] + [("G",)] * n


def test_empty_masks_are_finite_and_skip_step_c():
    # Nothing can be below a negative border, and nothing is valid below 0 x delta.
    method, play = build(known_margin=1e6, crs_valid=0.0)
    spy = Spy(method, play)
    s, t = next(batches())
    play.begin(0)
    log = method.update(s, t, 0, spy)
    assert [names for names, _ in spy.moved] == [("G", "C"), ("C",)]
    assert all(torch.isfinite(v).all() for v in log.values())
    assert all(torch.isfinite(p).all() for p in method.parameters())


def test_seven_forwards_and_six_backwards():
    method, play = build()
    count = {"forward": 0, "backward": 0}

    def add(what):
        count[what] += 1

    def passed(module, inputs, out):
        add("forward")
        if out.requires_grad:
            out.register_hook(lambda grad: add("backward"))

    method.backbone.register_forward_hook(passed)
    s, t = next(batches())
    play.begin(0)
    method.update(s, t, 0, play)
    assert count == {"forward": 7, "backward": 6}


def test_only_the_source_features_of_step_b_have_no_graph():
    """They cost a forward pass and no memory for a backward one; the target's graph serves the first repeat of Step C."""
    method, play = build()
    graphs = []
    method.backbone.register_forward_hook(lambda module, inputs, out: graphs.append(out.requires_grad))
    s, t = next(batches())
    play.begin(0)
    method.update(s, t, 0, play)
    assert graphs == [True, True, True, False, True, True, True]  # A: source, target; B: target, source; C: 2nd to 4th repeat


@pytest.mark.parametrize("name", ["no_select", "no_div", "no_crs", "no_ent", "no_sep", "no_minimax", "kl"])
def test_every_ablation_changes_the_result(name):
    def train(**hp):
        method, play = build(**hp)
        for step, (s, t) in enumerate(batches()):
            play.begin(step)
            method.update(s, t, step, play)
        return torch.cat([p.flatten() for p in method.parameters()])

    assert not torch.equal(train(), train(ablate=name))


def test_predict_rule_is_crs_above_delta():
    method, _ = build()
    out = method.eval().predict(torch.randn(7, 6))
    assert out.probs.shape == (7, K) and torch.allclose(out.probs.sum(1), torch.ones(7))
    assert torch.equal(out.unknown, out.score > method.delta)


def test_the_class_is_that_of_the_first_head_or_of_the_sum():
    x = torch.randn(40, 6)
    for kind in ("first", "sum"):
        method, _ = build(pred_head=kind)
        with torch.no_grad():
            method.heads.heads[1].weight.copy_(torch.randn(K, 8))
        first, second = (F.softmax(head, 1) for head in method.eval().heads(method.backbone(x)))
        expected = first if kind == "first" else (first + second) / 2
        torch.testing.assert_close(method.predict(x).probs, expected)
        assert (first.argmax(1) != (first + second).argmax(1)).any()


def test_with_delta_auto_every_loss_follows_the_border():
    torch.manual_seed(0)
    method = Divergence(Tiny(), SPLIT, DivergenceHparams(delta="auto", known_margin=0.1)).train()
    play = SGDPlayers(method.players(), lr=0.05, total_steps=STEPS)
    method.unknown_share = 0.4
    for step, (s, t) in enumerate(batches()):
        play.begin(step)
        method.heads.normalise_rows()
        crs = cross_divergence(method.heads(method.backbone(t.x)))
        before = method.delta
        log = method.update(s, t, step, play)
        assert method.delta == pytest.approx(0.9 * before + 0.1 * torch.quantile(crs, 0.6).item(), rel=1e-5)
        assert log["known"].item() == pytest.approx((crs < method.delta - 0.1).float().mean().item())
        assert method.separation.delta == method.minimax.delta == method.delta != before


@pytest.mark.parametrize("k, delta", [(20, 2.98), (15, math.log(15)), (9, 2.18), (7, math.log(7))])
def test_code_delta(k, delta):
    method = Divergence(Tiny(), LabelSplit([str(i) for i in range(k)]), DivergenceHparams())
    assert method.delta == pytest.approx(delta)
