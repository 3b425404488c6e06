"""DCC against its equations written out on small numbers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_bank_methods import B_S, B_T, N_T, SPLIT, K, Tiny, batches

from tllib_ext.errors import UserError
from tllib_ext.methods.context import Context
from tllib_ext.methods.dcc import Dcc, DccHparams, class_discrepancy, find_clusters
from tllib_ext.training.players import SGDPlayers

N_S = 3 * K
LABELS = np.arange(N_S) % K


def groups(seed=0):
    """Features of five source classes, and of a target that has the first two and another group."""
    rng = np.random.default_rng(seed)
    source = 5 * np.eye(8)[LABELS] + 0.1 * rng.normal(size=(N_S, 8))
    target = 5 * np.eye(8)[[0, 0, 0, 0, 1, 1, 1, 1, 7, 7, 7]] + 0.1 * rng.normal(size=(N_T, 8))
    return torch.from_numpy(source).float(), torch.from_numpy(target).float()


def build(steps=10, **hp):
    torch.manual_seed(0)
    method = Dcc(Tiny(), SPLIT, DccHparams(width=6, warmup=0.0, **hp))
    source, target = groups()
    context = Context(steps, N_S, N_T, source_labels=LABELS, source_features=lambda: source, target_features=lambda: target)
    method.prepare(context)
    return method.train()


def kernel(a, b, gamma):
    d = sum((x - y) ** 2 for x, y in zip(a, b))
    return sum(math.exp(-d / (gamma * 2.0**j)) for j in (-2, -1, 0, 1, 2))


def by_hand(s, y_s, t, y_t):
    """Contrastive domain discrepancy of lists of points with labels; None is no class."""
    common = sorted(set(y_s) & set(y_t) - {None})
    same, other = [], []
    for c in common:
        for e in common:
            a, b = [x for x, y in zip(s, y_s) if y == c], [x for x, y in zip(t, y_t) if y == e]
            pairs = [(x, y) for one in (a, b) for x in one for y in one] + 2 * [(x, y) for x in a for y in b]
            total = sum(sum((p - q) ** 2 for p, q in zip(x, y)) for x, y in pairs)
            gamma = total / (len(pairs) - len(a) - len(b))
            means = [sum(kernel(x, y, gamma) for x in u for y in v) / len(u) / len(v) for u, v in ((a, a), (b, b), (a, b))]
            (same if c == e else other).append(means[0] + means[1] - 2 * means[2])
    return sum(same) / len(same) - (sum(other) / len(other) if other else 0)


@pytest.mark.parametrize("y_t", [[1, 1, 4, None, 0, 1], [2, None, None, 2, 3, None], [1, 1, 1, 1, None, None]])
def test_the_discrepancy_of_classes_by_hand(y_t):
    g = torch.Generator().manual_seed(2)
    z_s, z_t = torch.randn(B_S, 3, generator=g).double(), torch.randn(B_T, 3, generator=g).double()
    y_s = [0, 1, 1, 2, 4, 4, 1, 3]
    every = torch.arange(K)
    in_s = (torch.tensor(y_s)[:, None] == every).double()
    in_t = (torch.tensor([-1 if y is None else y for y in y_t])[:, None] == every).double()
    expected = by_hand(z_s.tolist(), y_s, z_t.tolist(), y_t)
    assert class_discrepancy(z_s, z_t, in_s, in_t).item() == pytest.approx(expected, rel=1e-9)
    nothing = class_discrepancy(z_s.requires_grad_(), z_t, in_s, torch.zeros_like(in_t))
    assert nothing.item() == 0 and torch.autograd.grad(nothing, z_s)[0].isfinite().all()


def test_clusters_match_their_classes():
    source, target = (F.normalize(x, dim=1).double().numpy() for x in groups())
    centroids = np.stack([source[LABELS == k].mean(axis=0) for k in range(K)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    found = find_clusters(source, LABELS, centroids, target, [3])
    by_cluster = {int(found.classes[j]): np.flatnonzero(found.codes == j).tolist() for j in range(3)}
    assert by_cluster[0] == [0, 1, 2, 3] and by_cluster[1] == [4, 5, 6, 7]
    # Every pair agrees on the images of the class, and on those of the cluster.
    shares = [
        ((source[LABELS == i] @ found.centres.T).argmax(1) == j).mean() / 2
        + ((target[found.codes == j] @ centroids.T).argmax(1) == i).mean() / 2
        for j, i in enumerate(found.classes) if i >= 0
    ]  # fmt: skip
    assert found.score == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("scores, expected", [
    ([0.5, 0.7, 0.6, 0.6, 0.5, 0.9], 3),  # three steps after 0.7 that raise nothing: the better one is never tried
    ([0.5, 0.7, 0.6, 0.8, 0.5, 0.4], 5),  # else the best
])  # fmt: skip
def test_the_search_stops(scores, expected, monkeypatch):
    target = groups()[1].numpy()
    found = {n: find_clusters(target, LABELS[:N_T], np.eye(K, 8), target, [n]) for n in range(2, 8)}
    monkeypatch.setattr(
        "tllib_ext.methods.dcc._match", lambda *args: found[len(args[-1])]._replace(score=scores[len(args[-1]) - 2])
    )
    assert len(find_clusters(target, LABELS[:N_T], np.eye(K, 8), target, range(2, 8)).centres) == expected


def test_the_loss_is_the_equation(monkeypatch):
    method, (source, target) = build(), next(batches())
    method._cluster()
    method.classes[:4] = torch.tensor([0, 3, -1, 1])
    method.codes.rows[:, 0] = torch.arange(N_T) % 4
    centres, classes = method.centres.tolist(), method.classes.tolist()
    play = SGDPlayers(method.players(), lr=0.0, total_steps=10)
    terms, descend = {}, play.descend
    monkeypatch.setattr(play, "descend", lambda given, *names: (terms.update(given), descend(given, *names))[1])
    z_s, z_t = (method.embed(method.backbone(x)).detach() for x in (source.x, target.x))
    play.begin(3)
    method._rounds = frozenset()
    method.update(source, target, 3, play)

    code = [int(i) % 4 for i in target.index]
    y_t = [None if classes[j] < 0 else classes[j] for j in code]
    y_s = [y if y in (0, 1, 3) else None for y in source.y.tolist()]
    assert terms["source"].item() == pytest.approx(F.cross_entropy(method.head(z_s), source.y).item(), rel=1e-4)
    assert terms["classes"].item() == pytest.approx(0.1 * by_hand(z_s.tolist(), y_s, z_t.tolist(), y_t), rel=1e-4)
    u = [(row / row.norm()).tolist() for row in z_t]
    for j in set(code):
        b = [sum(column) for column in zip(*(u[i] for i in range(B_T) if code[i] == j))]
        b = [v / math.hypot(*b) for v in b]
        a = sum(x * y for x, y in zip(centres[j], b))
        new = [a * x + (1 - a) * y for x, y in zip(centres[j], b)]
        centres[j] = [v / math.hypot(*new) for v in new]
    real, expected = [j for j, kind in enumerate(classes) if kind > -2], 0.0
    assert 0 < len(real) < len(classes)
    for i in range(B_T):
        logits = {j: 10 * sum(x * y for x, y in zip(u[i], centres[j])) for j in real}
        expected += (math.log(sum(math.exp(v) for v in logits.values())) - logits[code[i]]) / B_T
    assert terms["clusters"].item() == pytest.approx(math.exp(-3 * (1 - 0.6 * 0.3)) * expected, rel=1e-4)


def test_an_image_is_unknown_where_the_nearest_centre_has_no_class():
    method = build().eval()
    method.embed = method.backbone = torch.nn.Identity()
    method.head = torch.nn.Linear(6, K)
    x = torch.eye(6)[:4]
    assert not method.predict(x).unknown.any()  # before the first round nothing is unknown
    method.centres[:3] = torch.eye(6)[:3]
    method.classes[:3] = torch.tensor([4, -1, 0])
    assert method.predict(x).unknown.tolist() == [False, True, False, False]
    method.classes[:3] = -1
    assert method.predict(x).unknown.all()  # no cluster matches


def test_the_number_of_clusters_is_kept_once_it_was_found_twice(monkeypatch):
    tried = []

    def spy(*args):
        tried.append(list(args[4]))
        return find_clusters(*args)

    monkeypatch.setattr("tllib_ext.methods.dcc.find_clusters", spy)
    method = build(least=0, small_start=True, interval=2)
    for _ in range(4):
        method._cluster()
    assert tried[0] == [5, 7, 9, 11] and tried[1] == [2, 4, 6, 8, 10]  # from K, then from the interval
    assert tried[-1] == [int(method.history[1])] and (method.classes > -2).sum() == method.history[1]
    method.hparams.least = N_T
    method._cluster()
    assert (method.classes < 0).all()  # clusters that are too small match nothing


def test_settings():
    with pytest.raises(UserError, match="rounds=0"):
        DccHparams(rounds=0)
    with pytest.raises(UserError, match="source_features"):
        Dcc(Tiny(), SPLIT).prepare(Context(steps=3))
