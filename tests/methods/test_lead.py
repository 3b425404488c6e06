"""LEAD, GLC and GLC++ against their equations written out on small numbers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_bank_methods import B_T, N_T, SPLIT, K, Tiny, batches

from tllib_ext.errors import UserError
from tllib_ext.methods.base import inverse_decay
from tllib_ext.methods.context import Context
from tllib_ext.methods.lead import Lead, LeadHparams
from tllib_ext.methods.pseudo_labels import glc_labels, lead_labels
from tllib_ext.training.players import SGDPlayers

TARGET = torch.randn(N_T, 8, generator=torch.Generator().manual_seed(4))


def build(**hp):
    torch.manual_seed(0)
    method = Lead(Tiny(), SPLIT, LeadHparams(width=10, **hp))
    method.prepare(Context(steps=2, num_target=N_T, target_features=lambda: TARGET))
    return method.train()


def step(method, number):
    play = SGDPlayers(method.players(), lr=0.01, total_steps=2, schedule=method.lr_factor)
    play.begin(number)
    return method.update(*next(batches()), number, play)


def test_the_source_stage_is_smoothed_cross_entropy():
    method, (source, _) = build(), next(batches())
    log_p = F.log_softmax(method.head(method.embed(method.backbone(source.x))), dim=1)
    expected = -sum(0.9 * row[y] + 0.1 * row.mean() for row, y in zip(log_p, source.y.tolist())) / len(log_p)
    assert step(method, 0)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["lead", "glc", "glc++"])
def test_the_target_stage_is_the_equations(kind):
    method, (_, target) = build(labels=kind), next(batches())
    w = method.head.weight.detach()
    method.embed.eval()
    z = method.embed(TARGET).detach()
    method.embed.train()
    bank, probs = F.normalize(z, dim=1), method.head(z).softmax(1).detach()
    u = np.linalg.svd(w.t().numpy())[0]
    r = np.linalg.norm(bank.numpy() @ u[:, K:], axis=1)
    log = step(method, 1)
    share = float(method.share)
    if kind == "lead":
        psd = lead_labels(bank.double().numpy(), probs.double().numpy(), r, F.normalize(w, dim=1).numpy(), share)
    else:
        psd = glc_labels(bank.double().numpy(), probs.double().numpy(), share)

    twin = build(labels=kind)
    z = twin.embed(twin.backbone(target.x)).detach()
    e, p = F.normalize(z, dim=1), twin.head(z).softmax(1).detach()
    labels = near = lengths = contrast = 0.0
    skipped = math.ceil(B_T / (K * share))
    for i, j in enumerate(target.index.tolist()):
        log_p = [math.log(v + 1e-5) for v in p[i].tolist()]
        labels -= 0.3 * psd.weights[j] * sum(q * v for q, v in zip(psd.labels[j], log_p)) / B_T
        order = sorted(range(N_T), key=lambda n: -float(e[i] @ bank[n]))[1:5]
        near -= sum(float(probs[order, k].mean()) * log_p[k] for k in range(K)) / B_T
        inside, outside = (float(np.linalg.norm(e[i].numpy() @ part)) for part in (u[:, :K], u[:, K:]))
        both = [math.exp(v) / (math.exp(inside) + math.exp(outside)) for v in (inside, outside)]
        lengths -= psd.weights[j] * math.log(both[int(psd.unknown[j])] + 1e-5) / B_T
        others = sorted((float(e[i] @ e[n]) for n in range(B_T) if n != i), reverse=True)
        contrast += (sum(others[skipped - 1 : skipped + 3]) - sum(float(e[i] @ bank[n]) for n in order)) / B_T
    assert log["labels"].item() == pytest.approx(labels, rel=1e-3)
    assert log["neighbours"].item() == pytest.approx(near, rel=1e-3)
    if kind == "lead":
        assert log["lengths"].item() == pytest.approx(lengths, rel=1e-3)
    if kind == "glc++":
        assert log["contrast"].item() == pytest.approx(contrast, rel=1e-3)
    assert set(log) == {"loss", "labels", "neighbours"} | {"lead": {"lengths"}, "glc++": {"contrast"}}.get(kind, set())
    torch.testing.assert_close(method.bank.rows[target.index], e)  # from before the step


def test_the_target_stage_leaves_the_classifier_and_sees_no_source():
    moved = []
    for shift in (0.0, 1.0):
        method, (source, target) = build(), next(batches())
        before = method.head.weight.clone()
        play = SGDPlayers(method.players(), lr=0.01, total_steps=2, schedule=method.lr_factor)
        play.begin(1)
        method.update(source._replace(x=source.x + shift), target, 1, play)
        assert torch.equal(method.head.weight, before)
        moved.append(method.state_dict())
    assert all(torch.equal(moved[0][name], moved[1][name]) for name in moved[0])


def test_schedule_and_settings():
    method = build(rounds=3)
    assert [method.lr_factor(s, 100) for s in (0, 25, 50, 75)] == pytest.approx(
        [1, inverse_decay(0.5), 0.1, 0.1 * inverse_decay(0.5)])  # fmt: skip
    method.prepare(Context(steps=100, num_target=N_T, target_features=lambda: TARGET))
    assert method._rounds == {50: 0, 66: 1, 83: 2}
    for wrong in ({"labels": "leda"}, {"source_share": 1.0}, {"rounds": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            LeadHparams(**wrong)
    with pytest.raises(UserError, match="width=5"):
        Lead(Tiny(), SPLIT, LeadHparams(width=5))
    with pytest.raises(UserError, match="target_features"):
        Lead(Tiny(), SPLIT).prepare(Context(steps=3))
