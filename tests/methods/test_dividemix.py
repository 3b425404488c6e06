"""DivideMix against its equations written out on small numbers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_bank_methods import B_S, SPLIT, K, Tiny, batches

from tllib_ext.errors import UserError
from tllib_ext.methods.context import Context
from tllib_ext.methods.dividemix import DivideMix, DivideMixHparams, clean_probability
from tllib_ext.training.players import SGDPlayers

FEATURES = torch.randn(B_S, 8, generator=torch.Generator().manual_seed(4))
CLEAN = torch.tensor([[0.9, 0.2], [0.4, 0.8], [0.7, 0.6], [0.1, 0.3]] * 2)


def build(**hp):
    torch.manual_seed(0)
    method = DivideMix(Tiny(), SPLIT, DivideMixHparams(**hp))
    labels = next(batches())[0].y.numpy()
    method.prepare(Context(steps=10, num_source=B_S, source_labels=labels, source_features=lambda: FEATURES))
    method.clean.rows.copy_(CLEAN)
    return method.train()


def test_the_terms_are_the_equations(monkeypatch):
    method, (source, _) = build(dropout=0.0, rounds=1), next(batches())
    play = SGDPlayers(method.players(), lr=0.01, total_steps=10)
    terms, descend = {}, play.descend
    monkeypatch.setattr(play, "descend", lambda given, *names: (terms.update(given), descend(given, *names))[1])
    with torch.no_grad():
        method.heads.normalise_rows()
        f = F.normalize(method.backbone(source.x), dim=1)
        probs = [F.softmax(f @ head.weight.t() / 0.05, dim=1) for head in method.heads.heads]
    raw = build(dropout=0.0, rounds=1).backbone(source.x).detach()
    play.begin(2)
    torch.manual_seed(9)
    method.update(source, None, 2, play)  # step 2 of 10: after the warm-up, and no round

    torch.manual_seed(9)
    twin = build(dropout=0.0, rounds=1)
    twin.heads.normalise_rows()
    torch.manual_seed(9)
    for h in (0, 1):
        w = CLEAN[:, 1 - h].tolist()
        q = []
        for i, y in enumerate(source.y.tolist()):
            row = [w[i] * (k == y) + (1 - w[i]) * float(probs[h][i, k]) for k in range(K)]
            if w[i] <= 0.5:
                row = [float(probs[0][i, k] + probs[1][i, k]) / 2 for k in range(K)]
            row = [max(v, 1e-12) ** 2 for v in row]
            q.append([v / sum(row) for v in row])
        q, x = torch.tensor(q + q), torch.cat([raw, raw])
        gammas = -torch.rand(2, 4).log().sum(1)
        share = float(max(gammas[0] / gammas.sum(), 1 - gammas[0] / gammas.sum()))
        other = torch.randperm(2 * B_S)
        p = twin.heads.heads[h](share * x + (1 - share) * x[other]).softmax(1).detach()
        q = share * q + (1 - share) * q[other]
        used = [v > 0.5 for v in w + w]
        ce = [-sum(a * math.log(b) for a, b in zip(qi, pi)) for qi, pi, u in zip(q.tolist(), p.tolist(), used) if u]
        mse = [sum((a - b) ** 2 for a, b in zip(qi, pi)) / K for qi, pi, u in zip(q.tolist(), p.tolist(), used) if not u]
        prior = sum(math.log(1 / K / float(p[:, k].mean())) / K for k in range(K))
        assert terms[f"labelled {h + 1}"].item() == pytest.approx(np.mean(ce), rel=1e-3)
        assert terms[f"unlabelled {h + 1}"].item() == pytest.approx(25 * np.mean(mse), rel=1e-3)
        assert terms[f"prior {h + 1}"].item() == pytest.approx(prior, rel=1e-3)


def test_labels_are_divided_by_the_losses():
    losses = np.r_[np.random.default_rng(0).normal(0.2, 0.05, 50), np.random.default_rng(1).normal(3, 0.3, 20)]
    w = clean_probability(losses)
    assert (w[:50] > 0.9).all() and (w[50:] < 0.1).all()
    assert (clean_probability(np.ones(4)) == 1).all()
    method = build()
    method._divide()
    logits = method.heads(FEATURES)
    labels = torch.as_tensor(method.context.source_labels)
    for h in (0, 1):
        expected = clean_probability(F.cross_entropy(logits[h], labels, reduction="none").detach().double().numpy())
        np.testing.assert_allclose(method.clean.rows[:, h], expected, atol=1e-6)


def test_refined_labels_and_settings():
    method = build()
    found = method.refined()
    p = torch.stack([h.softmax(1) for h in method.heads(FEATURES)]).mean(0).detach().numpy()
    for i, y in enumerate(method.context.source_labels):
        w = float(CLEAN[i].mean())
        q = [w * (k == y) + (1 - w) * p[i, k] for k in range(K)]
        assert found.labels[i] == int(np.argmax(q)) and found.weights[i] == pytest.approx(max(q), rel=1e-5)
    with pytest.raises(UserError, match="source_features"):
        DivideMix(Tiny(), SPLIT).prepare(Context(steps=3))
    with pytest.raises(UserError, match="warmup=1"):
        DivideMixHparams(warmup=1.0)
