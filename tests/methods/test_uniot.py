"""UniOT against its equations written out on small numbers."""

import pytest
import torch
import torch.nn.functional as F
from test_bank_methods import B_T, N_T, SPLIT, K, Tiny, batches

from tllib_ext.alignment.transport import sinkhorn, unbalanced_transport
from tllib_ext.errors import UserError
from tllib_ext.methods.context import Context
from tllib_ext.methods.uniot import UniOT, UniOTHparams
from tllib_ext.training.players import SGDPlayers

HP = dict(clusters=4, queue=9, hidden=0, width=5, warmup=0, gamma=0.2)
TARGET = torch.randn(N_T, 8, generator=torch.Generator().manual_seed(4))


def build(**hp):
    torch.manual_seed(0)
    method = UniOT(Tiny(), SPLIT, UniOTHparams(**{**HP, **hp}))
    method.prepare(Context(steps=3, num_target=N_T, target_features=lambda: TARGET))
    return method.train()


def logs(rows, weight):
    return F.log_softmax(rows @ weight.t() / 0.1, dim=1)


@pytest.mark.parametrize("gamma", [0.9, -0.9])
def test_the_loss_is_the_equations(gamma):
    """With gamma = 0.9 rows that were accepted fill up, with -0.9 features half way to their farthest prototype."""
    method, (source, target) = build(gamma=gamma), next(batches())
    p, c, queue, ids = method.prototypes.weight, method.clusters.weight, method.queue_rows.clone(), method.queue_index.tolist()
    unit = lambda x: F.normalize(method.projection(method.backbone(x)), dim=1)  # noqa: E731
    u_s, u = unit(source.x), unit(target.x)
    ce = -sum(logs(u_s, p)[i, y] for i, y in enumerate(source.y.tolist())) / len(u_s)

    near = []
    for i in range(B_T):
        candidates = [row for row, j in zip(queue, ids) if j not in target.index.tolist()] + [u[j] for j in range(B_T) if j != i]
        near.append(max(candidates, key=lambda row: (row @ u[i]).item()))
    near = torch.stack(near)
    filling = queue[torch.randint(9, (4,), generator=torch.Generator().manual_seed(7))]
    q = sinkhorn(torch.cat([u, near, filling]).detach() @ c.detach().t())
    pcd = 0.0
    for i in range(B_T):
        pcd -= (q[i] @ logs(u, c)[i] + (q[B_T + i] @ logs(u, c)[i] + q[i] @ logs(near, c)[i]) / 2) / 2 / B_T

    rows = torch.cat([queue, u]).detach()
    sim, beta = (rows @ p.t()).detach(), torch.full((K,), 1 / K)
    positive = sum(max(row) > gamma for row in sim.tolist())
    if positive <= len(sim) / 2:
        plan = unbalanced_transport(sim, beta).plan
        chosen = [i for i, row in enumerate(plan) if row.max() > 1 / len(plan) and plan.sum(0)[row.argmax()] >= 1 / K]
        fill, share = sim[chosen], (len(sim) - 2 * positive) / len(chosen)
    else:
        fill = torch.stack([F.normalize(row / 2 + p[s.argmin()] / 2, dim=0) @ p.t() for row, s in zip(rows, sim)]).detach()
        share = (2 * positive - len(sim)) / len(sim)
    n = len(sim) + share * len(fill)
    copies = torch.cat([torch.full((len(fill),), share), torch.ones(len(sim))]).double()
    plan = unbalanced_transport(torch.cat([fill, sim]), beta, copies=copies).plan
    masses = copies @ plan
    accepted = [i for i in range(-B_T, 0)
                if plan[i].max() > 1 / n and masses[plan[i].argmax()] >= 1 / K]  # fmt: skip
    assert accepted
    ccd = -sum(logs(u, p)[i, plan[i].argmax()] for i in accepted) / len(accepted)

    play = SGDPlayers(method.players(), lr=0.01, total_steps=3)
    play.begin(0)
    torch.manual_seed(7)
    log = method.update(source, target, 0, play)
    assert log["loss"].item() == pytest.approx(ce.item(), rel=1e-4)
    assert log["discovery"].item() == pytest.approx(0.1 * pcd.item(), rel=1e-4)
    assert log["detection"].item() == pytest.approx(0.1 * ccd.item(), rel=1e-4)
    torch.testing.assert_close(method.beta, 0.7 / K + 0.3 * masses, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(method.queue_rows[:B_T], u.detach())
    assert method.queue_index[:B_T].tolist() == target.index.tolist() and method.queue_next == B_T
    torch.testing.assert_close(method.prototypes.weight.norm(dim=1), torch.ones(K))


@pytest.mark.parametrize("gamma", [0.9, -0.9])
def test_the_decision_is_that_of_the_transport_of_the_whole_target(gamma):
    method = build(gamma=gamma).eval()
    method.refresh()
    method.backbone = torch.nn.Identity()
    found = method.predict(TARGET)
    u = F.normalize(method.projection(TARGET), dim=1)
    plan = method._transport(u)[0].plan
    positive = int(((u @ method.prototypes.weight.t()).amax(1) > gamma).sum())
    n, rows = 2 * max(positive, N_T - positive), plan[-N_T:]
    assert found.unknown.tolist() == [bool(row.max() <= 1 / n) for row in rows]
    torch.testing.assert_close(found.score, -(n * rows.amax(1)).log().float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.probs, (rows / rows.sum(1, keepdim=True)).float(), rtol=1e-4, atol=1e-5)


def test_an_evaluation_changes_nothing_in_training():
    runs = []
    for evaluate in (False, True):
        method = build()
        play = SGDPlayers(method.players(), lr=0.01, total_steps=3)
        for step, (source, target) in enumerate(batches()):
            play.begin(step)
            method.update(source, target, step, play)
            if evaluate:
                method.eval().refresh()
                method.train()
        runs.append(method.state_dict())
    kept = [name for name in runs[0] if name not in ("duals", "offset")]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in kept)


def test_settings_and_what_it_needs():
    with pytest.raises(UserError, match="clusters=1"):
        UniOTHparams(clusters=1)
    with pytest.raises(UserError, match="target_features"):
        UniOT(Tiny(), SPLIT).prepare(Context(steps=3))
