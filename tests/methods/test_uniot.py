"""UniOT against its equations written out on small numbers."""

import math

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

    rng = torch.Generator().manual_seed(0)  # the draws of step 0, in the method's order
    near = []
    for i in range(B_T):
        candidates = [row for row, j in zip(queue, ids) if j not in target.index.tolist()] + [u[j] for j in range(B_T) if j != i]
        near.append(max(candidates, key=lambda row: float(row @ u[i])))
    near = torch.stack(near)
    filling = queue[torch.randint(9, (4,), generator=rng)]
    q = sinkhorn(torch.cat([u, near, filling]).detach() @ c.detach().t())
    pcd = 0.0
    for i in range(B_T):
        pcd -= (q[i] @ logs(u, c)[i] + (q[B_T + i] @ logs(u, c)[i] + q[i] @ logs(near, c)[i]) / 2) / 2 / B_T

    rows = torch.cat([queue[torch.randint(9, (9,), generator=rng)], u]).detach()
    sim, beta = (rows @ p.t()).detach(), torch.full((K,), 1 / K)
    positive = sum(max(row) > gamma for row in sim.tolist())
    if positive <= len(sim) / 2:
        plan = unbalanced_transport(sim, beta).plan
        chosen = [i for i, row in enumerate(plan) if row.max() > 1 / len(plan) and plan.sum(0)[row.argmax()] >= 1 / K]
        drawn = torch.randint(len(chosen), (len(sim) - 2 * positive,), generator=rng)
        fill = torch.stack([sim[chosen[i]] for i in drawn])
    else:
        drawn = torch.randint(len(rows), (2 * positive - len(sim),), generator=rng)
        fill = torch.stack([F.normalize(rows[i] / 2 + p[sim[i].argmin()] / 2, dim=0) @ p.t() for i in drawn]).detach()
    plan = unbalanced_transport(torch.cat([fill, sim]), beta).plan
    accepted = [i for i in range(-B_T, 0)
                if plan[i].max() > 1 / len(plan) and plan.sum(0)[plan[i].argmax()] >= 1 / K]  # fmt: skip
    assert accepted
    ccd = -sum(logs(u, p)[i, plan[i].argmax()] for i in accepted) / len(accepted)

    play = SGDPlayers(method.players(), lr=0.01, total_steps=3)
    play.begin(0)
    log = method.update(source, target, 0, play)
    assert log["loss"].item() == pytest.approx(ce.item(), rel=1e-4)
    assert log["discovery"].item() == pytest.approx(0.1 * pcd.item(), rel=1e-4)
    assert log["detection"].item() == pytest.approx(0.1 * ccd.item(), rel=1e-4)
    torch.testing.assert_close(method.beta, 0.7 / K + 0.3 * plan.sum(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(method.queue_rows[:B_T], u.detach())
    assert method.queue_index[:B_T].tolist() == target.index.tolist() and method.queue_next == B_T
    torch.testing.assert_close(method.prototypes.weight.norm(dim=1), torch.ones(K))


def test_the_decision_is_that_of_the_transport_of_the_whole_target():
    method = build(gamma=-0.9)
    method.eval()
    method.backbone = torch.nn.Identity()
    found = method.predict(TARGET)
    u = F.normalize(method.projection(TARGET), dim=1)
    plan = method._transport(u, method.start, torch.Generator().manual_seed(0)).plan
    rows = plan[-N_T:]
    assert found.unknown.tolist() == [bool(row.max() <= 1 / len(plan)) for row in rows]
    torch.testing.assert_close(found.score, -(len(plan) * rows.amax(1)).log().float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.probs, (rows / rows.sum(1, keepdim=True)).float(), rtol=1e-4, atol=1e-5)
    assert method.threshold == 0 and math.isfinite(method.offset)


def test_an_evaluation_changes_nothing_in_training():
    runs = []
    for evaluate in (False, True):
        method = build()
        play = SGDPlayers(method.players(), lr=0.01, total_steps=3)
        for step, (source, target) in enumerate(batches()):
            play.begin(step)
            method.update(source, target, step, play)
            if evaluate:
                method.eval().predict(source.x)
                method.train()
        runs.append(method.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_settings_and_what_it_needs():
    with pytest.raises(UserError, match="clusters=1"):
        UniOTHparams(clusters=1)
    with pytest.raises(UserError, match="target_features"):
        UniOT(Tiny(), SPLIT).prepare(Context(steps=3))
