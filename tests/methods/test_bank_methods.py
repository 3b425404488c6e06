"""DANCE, DANCE_sel, OVANet, co-teaching and JoCoR against their equations written out on small numbers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from together import Together
from torch import nn

from tllib_ext.distributed import rank, world_size
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, inverse_decay
from tllib_ext.methods.context import Context
from tllib_ext.methods.coteaching import CoTeaching, CoTeachingHparams
from tllib_ext.methods.dance import Dance, DanceHparams, DanceSel, DanceSelHparams
from tllib_ext.methods.jocor import JoCoR, JoCoRHparams
from tllib_ext.methods.ovanet import OVANet, OVANetHparams, binary_entropy, one_vs_all
from tllib_ext.modules.adversarial import entropy
from tllib_ext.modules.memory import FeatureBank
from tllib_ext.split import LabelSplit
from tllib_ext.training.players import SGDPlayers

K, B_S, B_T, N_T, STEPS, LR = 5, 8, 6, 11, 3, 0.05
SPLIT = LabelSplit(["a", "b", "c"], ["d", "e"], ["u"])
SGD = dict(momentum=0.9, weight_decay=5e-4, nesterov=True)


class Tiny(nn.Sequential):
    out_features = 8

    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))


def batches():
    g = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        source = Batch(torch.randn(B_S, 6, generator=g), torch.randint(K, (B_S,), generator=g), torch.arange(B_S))
        yield source, Batch(torch.randn(B_T, 6, generator=g), None, torch.randperm(N_T, generator=g)[:B_T])


def build(cls, hparams, rate=0.25):
    torch.manual_seed(0)
    method = cls(Tiny(), SPLIT, hparams)
    method.prepare(Context(steps=STEPS, num_source=B_S, num_target=N_T, rate=rate))
    return method.train()


def trained(cls, hparams):
    method = build(cls, hparams)
    play = SGDPlayers(method.players(), lr=LR, total_steps=STEPS)
    for step, (source, target) in enumerate(batches()):
        play.begin(step)
        log = method.update(source, target, step, play)
    return method, log


def by_hand(cls, hparams, heads, loss_of, normalised, after=lambda *_: None):
    """Plain SGD over the same batches: only the initial weights are the method's."""
    method = build(cls, hparams)
    weights = heads(method)
    opt = torch.optim.SGD([{"params": method.backbone.parameters(), "lr": 0.0}, {"params": weights, "lr": 0.0}], **SGD)
    for step, (source, target) in enumerate(batches()):
        opt.param_groups[0]["lr"] = 0.1 * LR * inverse_decay(step / STEPS)
        opt.param_groups[1]["lr"] = LR * inverse_decay(step / STEPS)
        with torch.no_grad():
            for w in normalised(method):
                w /= w.norm(dim=1, keepdim=True)
        opt.zero_grad()
        loss, extra = loss_of(method.backbone, weights, source, target, step)
        loss.backward()
        opt.step()
        after(extra, target)
    return method


def same_state(ours, theirs, skip=()):
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
        if name not in skip:
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")


def cosine_probs(w, f):
    return F.softmax(F.linear(f / f.norm(dim=1, keepdim=True), w) / 0.05, dim=1)


def shannon(p, eps):
    return -sum(q * torch.log(q + eps) for q in p)


@pytest.mark.parametrize("select", [False, True])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_dance_is_its_equations(preset, select):
    eps = 1e-5 if preset == "default" else 0.0
    bank = [torch.zeros(8) for _ in range(N_T)]

    def loss_of(net, weights, source, target, step):
        p_s = cosine_probs(weights[0], net(source.x))
        ce = torch.stack([-torch.log(p_s[i, y]) for i, y in enumerate(source.y.tolist())])
        if select and step >= 1:
            ce = ce.sort().values[:6]  # 0.75 x 8
        f = net(target.x)
        u = [row / row.norm() for row in f]
        p_t = cosine_probs(weights[0], f)
        clustering, apart = 0, 0
        for i in range(B_T):
            own_classes = [(w @ u[i]) / 0.05 for w in weights[0]]
            remembered = [torch.tensor(-20.0) if j in target.index else (bank[j] @ u[i]) / 0.05 for j in range(N_T)]
            others = [torch.tensor(-20.0) if j == i else (u[j] @ u[i]) / 0.05 for j in range(B_T)]
            clustering += shannon(F.softmax(torch.stack(own_classes + remembered + others), dim=0), eps) / B_T
            apart -= torch.clamp((shannon(p_t[i], eps) - math.log(K) / 2).abs(), min=0.5) / B_T
        return ce.mean() + 0.05 * clustering + 0.05 * apart, [row.detach() for row in u]

    def remember(u, target):
        for row, j in zip(u, target.index.tolist()):
            bank[j] = row

    cls, kind = (DanceSel, DanceSelHparams) if select else (Dance, DanceHparams)
    hparams = kind(**cls.presets[preset], **({"warmup": 1} if select else {}))
    ours, _ = trained(cls, hparams)
    head = lambda method: [method.head.weight]  # noqa: E731
    theirs = by_hand(cls, hparams, head, loss_of, head, remember)
    same_state(ours, theirs, skip=("bank.rows",))
    torch.testing.assert_close(ours.bank.rows, torch.stack(bank), rtol=2e-5, atol=2e-5)
    assert 0 < (ours.bank.rows.norm(dim=1) > 0).sum() <= N_T


def test_dance_rho_and_test_rule():
    for k, rho in ((20, 1.49), (15, math.log(15) / 2), (9, 1.09), (7, math.log(7) / 2)):
        method = Dance(Tiny(), LabelSplit([str(i) for i in range(k)]))
        assert method.rho == pytest.approx(rho)
        assert method.threshold == pytest.approx(math.log(k) / 2)  # at test the default is exact
        code = Dance(Tiny(), LabelSplit([str(i) for i in range(k)]), Dance.configure("code", {}))
        assert code.rho == code.threshold == code.rule.threshold == pytest.approx(rho)
    assert Dance(Tiny(), SPLIT, DanceHparams(rho=0.7)).rho == 0.7
    with pytest.raises(UserError, match="rho='half'"):
        DanceHparams(rho="half")


def test_dance_sel_warm_up_and_rate():
    method = build(DanceSel, DanceSelHparams(), rate=0.45)
    assert method.drop_rate == 0.45
    for steps, expected in ((5001, 101), (1000, 40), (50, 2)):
        method.prepare(Context(steps=steps, num_target=N_T))
        assert method.warmup == expected
    assert build(DanceSel, DanceSelHparams(drop_rate=0.1)).drop_rate == 0.1
    for cls in (DanceSelHparams, CoTeachingHparams):
        for wrong in (1.5, -0.1, "half"):
            with pytest.raises(UserError, match="drop_rate"):
                cls(drop_rate=wrong)


@pytest.mark.parametrize("cls", [DanceSel, CoTeaching])
def test_the_rate_can_be_estimated(cls):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(400) % K
    f = 4 * torch.eye(K)[y] + torch.randn(400, K, generator=g)
    wrong = torch.rand(400, generator=g) < 0.25
    given = torch.where(wrong, (y + 1) % K, y)
    said = []
    context = Context(STEPS, 400, N_T, rate=0.0, source_labels=given.numpy(), source_inputs=f, say=said.append)
    method = cls(Tiny(), SPLIT, cls.Hparams(drop_rate="auto"))
    method.prepare(context)
    assert method.drop_rate == pytest.approx(wrong.float().mean().item(), abs=0.05) and said


def test_entropy_epsilon():
    logits = torch.tensor([[2.0, 0.0, -30.0]])
    p = [math.exp(v) / (math.exp(2) + 1 + math.exp(-30)) for v in (2, 0, -30)]
    assert entropy(logits).item() == pytest.approx(-sum(q * math.log(q) for q in p), rel=1e-5)
    assert entropy(logits, 1e-5).item() == pytest.approx(-sum(q * math.log(q + 1e-5) for q in p), rel=1e-5)
    assert torch.isfinite(entropy(torch.tensor([[300.0, 0.0]], dtype=torch.float16))).all()


def test_bank_is_state_of_any_size():
    bank = FeatureBank(8)
    bank.resize(N_T)
    bank.write(torch.randn(4, 8), torch.tensor([0, 3, 5, 10]))
    assert torch.allclose(bank.rows[[0, 3, 5, 10]].norm(dim=1), torch.ones(4))
    other = FeatureBank(8)
    other.load_state_dict(bank.state_dict())  # never told how many images there are
    assert torch.equal(other.rows, bank.rows) and not list(bank.parameters())
    with pytest.raises(RuntimeError, match="size mismatch"):
        FeatureBank(9).load_state_dict(bank.state_dict())


def test_one_vs_all_by_hand():
    logits = torch.tensor([[[0.5, -1.0, 2.0], [1.5, 0.0, -2.0]], [[0.0, 3.0, 0.2], [1.0, 0.5, 0.1]]])
    labels = torch.tensor([0, 2])
    o = [[[math.exp(logits[i, s, k]) / sum(math.exp(logits[i, r, k]) for r in (0, 1)) for k in range(3)] for s in (0, 1)]
         for i in (0, 1)]  # fmt: skip
    positive, negative = one_vs_all(logits, labels)
    for i, y in enumerate(labels.tolist()):
        assert positive[i].item() == pytest.approx(-math.log(o[i][1][y]), rel=1e-5)
        assert negative[i].item() == pytest.approx(max(-math.log(o[i][0][k]) for k in range(3) if k != y), rel=1e-5)
        ent = sum(-o[i][s][k] * math.log(o[i][s][k]) for s in (0, 1) for k in range(3)) / 3
        assert binary_entropy(logits)[i].item() == pytest.approx(ent, rel=1e-5)
    # Surely wrong: the authors' epsilon caps the loss, without it it is the logit gap.
    sure = torch.tensor([[[50.0], [0.0]]])
    assert one_vs_all(sure.expand(1, 2, 2), torch.tensor([0]))[0].item() == pytest.approx(50.0)
    assert one_vs_all(sure.expand(1, 2, 2), torch.tensor([0]), 1e-8)[0].item() == pytest.approx(-math.log(1e-8))


@pytest.mark.parametrize("preset, half, eps", [("default", 0.5, 1e-8), ("paper", 1.0, 0.0)])
def test_ovanet_is_its_equations(preset, half, eps):
    def loss_of(net, weights, source, target, step):
        f_s, f_t = net(source.x), net(target.x)
        p = F.softmax(f_s @ weights[0].t(), dim=1)
        loss = 0
        for i, y in enumerate(source.y.tolist()):
            o = F.softmax((weights[1] @ f_s[i]).reshape(2, K), dim=0)
            hardest = torch.stack([-torch.log(o[0, k] + eps) for k in range(K) if k != y]).max()
            loss = loss + (-torch.log(p[i, y]) + half * (-torch.log(o[1, y] + eps) + hardest)) / B_S
        for row in f_t:
            o = F.softmax((weights[1] @ row).reshape(2, K), dim=0)
            loss = loss + 0.1 * -(o * torch.log(o + eps)).sum() / K / B_T
        return loss, None

    hparams = OVANetHparams(**OVANet.presets[preset])
    ours, _ = trained(OVANet, hparams)
    theirs = by_hand(OVANet, hparams, lambda m: [m.closed.weight, m.open.weight], loss_of, lambda m: [m.open.weight])
    same_state(ours, theirs)


def test_ovanet_asks_the_detector_of_the_predicted_class():
    method = build(OVANet, OVANetHparams()).eval()
    x = torch.randn(9, 6)
    out = method.predict(x)
    f = method.backbone(x)
    for i in range(9):
        k = int((method.closed.weight @ f[i]).argmax())
        o = F.softmax(torch.stack([method.open.weight[k] @ f[i], method.open.weight[K + k] @ f[i]]), dim=0)
        assert out.score[i].item() == pytest.approx(o[0].item(), abs=1e-6)
        assert bool(out.unknown[i]) == (o[0].item() > 0.5)


def test_each_head_learns_what_the_other_one_chose():
    def loss_of(net, weights, source, target, step):
        f = net(source.x)
        ce = [-torch.log(cosine_probs(w, f)[range(B_S), source.y]) for w in weights]
        keep = B_S - int(B_S * 0.25 * min(1, step / 2) + 1 - 1e-6)  # steps 0, 1, 2 drop 0, 1, 2 of 8
        first, second = (values.argsort()[:keep] for values in ce)
        return ce[0][second].mean() + ce[1][first].mean(), None

    hparams = CoTeachingHparams(ramp=2 / STEPS)
    ours, log = trained(CoTeaching, hparams)
    theirs = by_hand(CoTeaching, hparams, lambda m: [h.weight for h in m.heads.heads], loss_of,
                     lambda m: [h.weight for h in m.heads.heads])  # fmt: skip
    same_state(ours, theirs)
    assert log["kept"].item() == pytest.approx(0.75)


@pytest.mark.parametrize("lam", [0.1, 0.9, 1.0])
def test_jocor_is_its_equation(lam):
    def loss_of(net, weights, source, target, step):
        f = net(source.x)
        p, q = (cosine_probs(w, f) for w in weights)
        ce = -torch.log(p[range(B_S), source.y]) - torch.log(q[range(B_S), source.y])
        kl = (p * torch.log(p / q)).sum(1) + (q * torch.log(q / p)).sum(1)
        return ((1 - lam) * ce + lam * kl).sort().values[:6].mean(), None

    hparams = JoCoRHparams(lam=lam, ramp=0.0)
    ours, _ = trained(JoCoR, hparams)
    theirs = by_hand(JoCoR, hparams, lambda m: [h.weight for h in m.heads.heads], loss_of,
                     lambda m: [h.weight for h in m.heads.heads])  # fmt: skip
    same_state(ours, theirs)


def test_ramp_is_a_share_of_the_run():
    method = build(CoTeaching, CoTeachingHparams(), rate=0.4)
    method.prepare(Context(steps=1000, rate=0.4))
    assert [method.dropped(s) for s in (0, 50, 100, 999)] == pytest.approx([0.0, 0.2, 0.4, 0.4])
    with pytest.raises(UserError, match="ramp"):
        CoTeachingHparams(ramp=2)
    with pytest.raises(UserError, match="lam"):
        JoCoRHparams(lam=1.5)


@pytest.mark.parametrize("cls, kind", [(CoTeaching, CoTeachingHparams), (JoCoR, JoCoRHparams)])
def test_unknown_by_the_mean_of_both_heads(cls, kind):
    x = torch.randn(20, 6)
    by_entropy = build(cls, kind(unknown_threshold=0.3)).eval()
    out = by_entropy.predict(x)
    f = by_entropy.backbone(x)
    mean = sum(cosine_probs(h.weight, f) for h in by_entropy.heads.heads) / 2
    torch.testing.assert_close(out.probs, mean)
    assert out.unknown.tolist() == [shannon(p, 0.0).item() > 0.3 * math.log(K) for p in mean]
    out = build(cls, kind(unknown_rule="confidence", unknown_threshold=0.6)).eval().predict(x)
    assert out.unknown.tolist() == [p.max().item() < 0.6 for p in mean]


class Linear(nn.Sequential):
    """No batch norm: its statistics are each process's own."""

    out_features = 8

    def __init__(self):
        super().__init__(nn.Linear(6, 8))


def trained_states():
    """The state of two methods after some steps on this process's share of the batches."""
    mine_s, mine_t = (slice(rank() * n // world_size(), (rank() + 1) * n // world_size()) for n in (B_S, B_T))
    states = {}
    for cls, hparams in ((DanceSel, DanceSelHparams(warmup=0)), (CoTeaching, CoTeachingHparams(ramp=0))):
        torch.manual_seed(0)
        method = cls(Linear(), SPLIT, hparams)
        method.prepare(Context(steps=STEPS, num_target=N_T, rate=0.25))
        play = SGDPlayers(method.players(), lr=LR, total_steps=STEPS)
        for step, (s, t) in enumerate(batches()):
            play.begin(step)
            source = Batch(s.x[mine_s], s.y[mine_s], s.index[mine_s])
            method.update(source, Batch(t.x[mine_t], None, t.index[mine_t]), step, play)
        states.update({f"{cls.__name__} {name}": value.numpy() for name, value in method.state_dict().items()})
    return states


@pytest.mark.slow
def test_two_processes_are_one_with_the_whole_batch():
    one, two = trained_states(), Together(2, trained_states).results()
    for name, value in one.items():
        np.testing.assert_array_equal(two[0][name], two[1][name], err_msg=name)
        np.testing.assert_allclose(two[0][name], value, rtol=1e-5, atol=1e-5, err_msg=name)
