"""PPOT against its equations written out on small numbers."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_bank_methods import B_S, B_T, N_T, SPLIT, K, Tiny, batches

from tllib_ext.alignment.transport import partial_transport
from tllib_ext.errors import UserError
from tllib_ext.methods.context import Context
from tllib_ext.methods.ppot import Ppot, PpotHparams
from tllib_ext.training.players import SGDPlayers

SOURCE, TARGET = (torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (20, N_T))


def build(**hp):
    torch.manual_seed(0)
    method = Ppot(Tiny(), SPLIT, PpotHparams(bottleneck=6, rounds=1, **hp))
    labels = (torch.arange(20) % K).numpy()
    method.prepare(Context(steps=12, source_labels=labels, source_features=lambda: SOURCE, target_features=lambda: TARGET))
    method._look_at_all(first=True)
    method.alpha.fill_(0.4)
    method.beta.fill_(0.6)
    return method.train()


def projected(cost, a, b, mass, eps=0.01, rounds=1500):
    """Dykstra's algorithm on the three constraints, as published, on the whole matrix."""
    plan = (-cost.double() / eps).exp()
    plan *= mass / plan.sum()
    q = [torch.ones_like(plan) for _ in range(3)]
    for _ in range(rounds):
        for i in range(3):
            before = plan * q[i]
            if i == 0:
                plan = before * (a / before.sum(1)).clamp(max=1)[:, None]
            elif i == 1:
                plan = before * (b / before.sum(0)).clamp(max=1)
            else:
                plan = before * mass / before.sum()
            q[i] = before / plan
    return plan


@pytest.mark.parametrize("mass", [0.3, 0.6])
def test_partial_transport_is_the_published_algorithm(mass):
    cost = torch.rand(4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    a, b = torch.full((4,), 0.2, dtype=torch.float64), torch.full((6,), 1 / 6, dtype=torch.float64)
    plan = partial_transport(cost, a, b, torch.tensor(mass), eps=0.05)
    torch.testing.assert_close(plan, projected(cost, a, b, mass, eps=0.05).float(), rtol=1e-3, atol=1e-5)
    assert (plan.sum(1) <= a + 1e-3).all() and (plan.sum(0) <= b + 1e-3).all() and plan.sum().item() == pytest.approx(mass)


def test_the_terms_are_the_equations(monkeypatch):
    method, (source, target) = build(), next(batches())
    play = SGDPlayers(method.players(), lr=0.01, total_steps=12)
    terms, descend = {}, play.descend
    monkeypatch.setattr(play, "descend", lambda given, *names: (terms.update(given), descend(given, *names))[1])
    twin = build()
    z_s, z_t = (twin.bottleneck(twin.backbone(x)).detach() for x in (source.x, target.x))
    u_s, u_t = F.normalize(z_s, dim=1), F.normalize(z_t, dim=1)
    p = twin.head(z_t).softmax(1).detach()
    alpha = 0.999 * 0.4 + 0.001 * sum(float(row.max()) >= 0.9 for row in p) / B_T
    protos = []
    for k in range(K):
        mine = [u_s[i] for i in range(B_S) if source.y[i] == k]
        mean = sum(mine) / len(mine) if mine else twin.prototypes[k]
        protos.append(F.normalize(0.9 * twin.prototypes[k] + 0.1 * mean, dim=0))
    cost = torch.stack([torch.stack([(c - u).square().sum() for u in u_t]) for c in protos])
    plan = partial_transport(
        cost / cost.max(), torch.full((K,), alpha / 0.6 / K), torch.full((B_T,), 1 / B_T), torch.tensor(alpha)
    )
    w = [0.9 + 0.1 * float(row.sum()) * B_T for row in plan]
    w = [v * K / sum(w) for v in w]
    ce = [F.cross_entropy(twin.head(z_s[i]), source.y[i]).item() for i in range(B_S)]
    weights = [w[y] for y in source.y.tolist()]
    moved = [float(plan[:, i].sum()) * B_T / alpha for i in range(B_T)]
    far = sorted(range(B_T), key=lambda i: -float(cost[:, i].min()))[: round(0.25 * B_T)]
    h = [-sum(v * math.log(v) for v in row) for row in p.tolist()]
    play.begin(3)
    log = method.update(source, target, 3, play)
    expected = {
        "source": sum(a * b for a, b in zip(weights, ce)) / sum(weights),
        "transport": 5 * math.sqrt(float((plan * cost).sum())),
        "known": 0.01 * sum(m * v for m, v in zip(moved, h)) / B_T,
        "unknown": -2 * sum((1 - moved[i]) * h[i] for i in far) / B_T,
    }
    for name, value in expected.items():
        assert terms[name].item() == pytest.approx(value, rel=2e-3, abs=1e-5), name
    assert log["alpha"].item() == pytest.approx(alpha, rel=1e-5)
    assert log["beta"].item() == pytest.approx(0.99 * 0.6 + 0.01 * sum(v > 1 for v in w) / K, rel=1e-5)
    torch.testing.assert_close(method.prototypes, torch.stack(protos), rtol=1e-4, atol=1e-5)


def test_all_images_and_settings():
    method = build()
    method.bottleneck.eval()
    unit = F.normalize(method.bottleneck(SOURCE), dim=1).detach()
    for k in range(K):
        torch.testing.assert_close(method.prototypes[k], F.normalize(unit[k::K].sum(0), dim=0), rtol=1e-4, atol=1e-5)
    method._look_at_all(first=True)
    share = (method.head(method.bottleneck(TARGET)).softmax(1).amax(1) >= 0.9).float().mean().item()
    assert method.alpha.item() == pytest.approx(max(share, 0.01)) and method.beta.item() == pytest.approx(max(share, 1 / K))
    with pytest.raises(UserError, match="far=2"):
        PpotHparams(far=2.0)
    with pytest.raises(UserError, match="source_features"):
        Ppot(Tiny(), SPLIT).prepare(Context(steps=3))
