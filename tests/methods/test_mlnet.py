"""MLNet's further terms written out on small numbers; OVANet's are tested with OVANet."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_bank_methods import B_T, N_T, SPLIT, K, Tiny, batches

from tllib_ext.errors import UserError
from tllib_ext.methods.context import Context
from tllib_ext.methods.mlnet import MLNet, MLNetHparams, jaccard, neighbour_sets
from tllib_ext.training.players import SGDPlayers

TARGET = torch.randn(N_T, 8, generator=torch.Generator().manual_seed(4))


def build(**hp):
    torch.manual_seed(0)
    method = MLNet(Tiny(), SPLIT, MLNetHparams(neighbour_ratio=0.3, **hp))
    method.prepare(Context(steps=4, num_target=N_T, target_features=lambda: TARGET))
    return method.train()


def cosine(a, b):
    return float(a @ b / a.norm() / b.norm())


def sets_of(rows, ratio):
    found = []
    for i, a in enumerate(rows):
        similar = {j: cosine(a, b) for j, b in enumerate(rows) if j != i}
        found.append({j for j, value in similar.items() if value > ratio * max(similar.values()) and max(similar.values()) > 0})
    return found


def overlap(a, b):
    return len(a & b) / max(1, len(a | b))


def test_the_terms_are_the_equations():
    method, (source, target) = build(), next(batches())
    rows = [row.clone() for row in TARGET]
    old = sets_of(rows, 0.3)
    method.overlaps.rows.copy_(torch.tensor([[overlap(a, b) for b in old] for a in old]))
    twin = build()
    f_s, f_t = twin.backbone(source.x).detach(), twin.backbone(target.x).detach()
    for i, j in enumerate(target.index.tolist()):
        rows[j] = f_t[i]  # overwritten before the neighbours are sought
    neighbours = consistency = mix = 0.0
    for i, j in enumerate(target.index.tolist()):
        cosines = [-1.0 if n == j else cosine(f_t[i], rows[n]) for n in range(N_T)]
        near = [n for n in range(N_T) if cosines[n] > 0.3 * max(cosines)] if max(cosines) > 0 else []
        total = sum(math.exp(10 * c) for c in cosines)
        part = sum(overlap(old[j], old[n]) * math.log(math.exp(10 * cosines[n]) / total + 1e-8) for n in near)
        neighbours -= 0.5 * part / max(1, len(near)) / B_T
        p, pairs = twin.closed(f_t[i]).softmax(0), twin.open(f_t[i]).view(2, K).softmax(0)
        consistency -= 0.16 * float(sum(p[k] * pairs[1, k] for k in range(K))) / K / B_T
    torch.manual_seed(5)
    gammas = -torch.rand(2, 2, B_T, 1).log().sum(1)
    for i, b in enumerate((gammas[0] / gammas.sum(0)).squeeze(1).tolist()):
        pairs = twin.open(b * f_s[i] + (1 - b) * f_t[i]).view(2, K).softmax(0)
        mix -= 0.1 * math.log(float(pairs[0, source.y[i]]) + 1e-8) / B_T

    play = SGDPlayers(method.players(), lr=0.01, total_steps=4)
    play.begin(0)
    torch.manual_seed(5)
    log = method.update(source, target, 0, play)
    for name, expected in (("neighbours", neighbours), ("consistency", consistency), ("mix", mix)):
        assert log[name].item() == pytest.approx(expected, rel=1e-3), name
    after = sets_of([row / row.norm() for row in rows], 0.3)  # rounds=50 of 4 steps: overlaps are new after every step
    torch.testing.assert_close(method.overlaps.rows, torch.tensor([[overlap(a, b) for b in after] for a in after]))


def test_sets_and_settings():
    assert neighbour_sets(torch.tensor([[-1.0, 0.8, 0.75, 0.2], [0.1, -1.0, -0.5, -0.2]]), 0.9).tolist() == [
        [False, True, True, False], [True, False, False, False]]  # fmt: skip
    assert not neighbour_sets(torch.tensor([[-1.0, -0.2]]), 0.9).any()
    assert jaccard(torch.zeros(2, 3, dtype=torch.bool)).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(UserError, match="rounds=0"):
        MLNetHparams(rounds=0)
    with pytest.raises(UserError, match="target_features"):
        MLNet(Tiny(), SPLIT).prepare(Context(steps=3))


def test_no_head_is_normalised():
    method, (source, target) = build(), next(batches())
    before = method.open.weight.norm(dim=1).clone()
    play = SGDPlayers(method.players(), lr=1e-9, total_steps=4)
    play.begin(0)
    method.update(source, target, 0, play)
    torch.testing.assert_close(method.open.weight.norm(dim=1), before)
    assert not torch.allclose(before, torch.ones(2 * K))
    assert F.normalize(TARGET, dim=1).shape == method.bank.rows.shape
