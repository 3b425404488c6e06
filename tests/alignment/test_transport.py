"""Transport plans against the alternating scalings written out."""

import math

import pytest
import torch

from tllib_ext.alignment.transport import sinkhorn, unbalanced_transport


def test_sinkhorn_is_three_rounds_of_scaling():
    sim = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    q = [[math.exp(v / 0.05) for v in row] for row in sim.tolist()]
    for _ in range(3):
        for j in range(3):
            total = sum(row[j] for row in q)
            for row in q:
                row[j] /= 3 * total
        q = [[v / sum(row) / 4 for v in row] for row in q]
    torch.testing.assert_close(sinkhorn(sim), 4 * torch.tensor(q))


def scaled(sim, beta, eps=0.01, rho=0.5, rounds=4000):
    """The unbalanced Sinkhorn algorithm: u = (a / K v)^tau, v = (b / K u)^tau, as published."""
    kernel, tau = (sim.double() / eps).exp(), rho / (rho + eps)
    a, v = torch.full((len(sim),), 1 / len(sim), dtype=torch.float64), torch.ones_like(beta)
    for _ in range(rounds):
        u = (a / (kernel @ v)) ** tau
        v = (beta / (kernel.t() @ u)) ** tau
    plan = u[:, None] * kernel * v
    return plan / plan.sum(), eps * v.log()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_unbalanced_transport_is_the_published_fixed_point(seed, warm):
    g = torch.Generator().manual_seed(seed)
    sim, beta = 2 * torch.rand(40, 6, generator=g) - 1, torch.rand(6, generator=g, dtype=torch.float64)
    plan, duals = scaled(sim, beta / beta.sum())
    found = unbalanced_transport(sim, beta / beta.sum(), start=torch.randn(6, generator=g) if warm else None)
    torch.testing.assert_close(found.plan, plan, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(found.g, duals, rtol=1e-4, atol=1e-6)
    v = (found.g + sim.double()) / 0.01  # a row can be judged by itself
    torch.testing.assert_close((found.offset + v.amax(1) - 0.5 / 0.51 * v.logsumexp(1)).exp(), 40 * found.plan.amax(1))


def test_copies_are_equal_rows():
    sim = 2 * torch.rand(5, 3, generator=torch.Generator().manual_seed(1)) - 1
    some = unbalanced_transport(sim, torch.full((3,), 1 / 3), copies=torch.tensor([1, 3, 1, 0, 2]))
    whole = unbalanced_transport(sim[[0, 1, 1, 1, 2, 4, 4]], torch.full((3,), 1 / 3))
    torch.testing.assert_close(some.plan[[0, 1, 1, 1, 2, 4, 4]], whole.plan)
    torch.testing.assert_close(some.offset, whole.offset)


def test_columns_without_mass_and_single_rows():
    found = unbalanced_transport(torch.tensor([[1.0, -1.0]]), torch.tensor([0.0, 1.0]))
    assert torch.isfinite(found.plan).all() and found.plan.sum().item() == pytest.approx(1)
