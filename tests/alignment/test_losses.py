"""The paper's quantities: identities, longhand values, half precision and empty masks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.alignment.divergence import (
    SmallLossSelection,
    TargetSeparation,
    cross_divergence,
    divergences,
    joint_loss,
    mean_distribution_entropy,
    num_kept,
    separation,
    small_loss_mask,
)
from tllib_ext.distributed import pooled_mean
from tllib_ext.errors import NonFiniteLoss, UserError
from tllib_ext.methods.base import inverse_decay
from tllib_ext.modules.batchnorm import BatchNormReplay
from tllib_ext.training.players import SGDPlayers


def heads(seed, n=6, k=5, h=2, scale=3.0):
    g = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(n, k, generator=g) for _ in range(h)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 30), st.floats(0.1, 20))
def test_crs_is_entropies_plus_skld_and_matches_longhand(seed, k, scale):
    a, b = heads(seed, k=k, scale=scale)
    p, q = a.double().softmax(1), b.double().softmax(1)
    lp, lq = a.double().log_softmax(1), b.double().log_softmax(1)
    skld, crs, ent = divergences((a, b))
    kl = (p * (lp - lq)).sum(1) + (q * (lq - lp)).sum(1)
    torch.testing.assert_close(crs.double(), -(p * lq).sum(1) - (q * lp).sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ent.double(), -(p * lp).sum(1) - (q * lq).sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(skld.double(), kl, rtol=1e-3, atol=1e-3)
    assert (ent <= 2 * math.log(k) + 1e-4).all() and (skld >= -1e-4).all()


def test_more_heads_are_the_mean_over_pairs():
    logits = heads(1, h=3)
    pairs = [divergences((logits[i], logits[j])) for i, j in ((0, 1), (0, 2), (1, 2))]
    for together, apart in zip(divergences(logits), zip(*pairs)):
        torch.testing.assert_close(together, torch.stack(apart).mean(0))


def test_joint_loss_longhand():
    a, b = heads(2)
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    expected = -a.log_softmax(1)[range(6), y] - b.log_softmax(1)[range(6), y] + 0.1 * divergences((a, b))[0]
    torch.testing.assert_close(joint_loss((a, b), y), expected)


def test_the_codes_entropy_is_twice_the_papers_for_equal_heads_and_larger_for_others():
    a, b = heads(3)
    torch.testing.assert_close(mean_distribution_entropy((a, a)), divergences((a, a))[2])
    assert (mean_distribution_entropy((a, b)) >= divergences((a, b))[2] - 1e-5).all()
    # confident and contradictory: ent = 0, but 2 H(mean) = 2 log 2
    c = torch.tensor([[50.0, 0.0, 0.0]]), torch.tensor([[0.0, 50.0, 0.0]])
    assert divergences(c)[2].item() == pytest.approx(0, abs=1e-5)
    assert mean_distribution_entropy(c).item() == pytest.approx(2 * math.log(2), rel=1e-5)


@pytest.mark.parametrize("batch, rate, kept", [(36, 0.2, 28), (36, 0.45, 19), (36, 0, 36), (3, 0.99, 1), (10, 0.9, 1)])
def test_selection_counts(batch, rate, kept):
    assert num_kept(batch, rate) == kept
    assert small_loss_mask(torch.rand(batch), num_kept(batch, rate)).sum() == kept


def test_selection_module_is_the_mean_of_the_smallest():
    logits, y = heads(4), torch.tensor([0, 1, 2, 3, 4, 0])
    values = joint_loss(logits, y).sort().values
    torch.testing.assert_close(SmallLossSelection(0.5)(logits, y), values[:3].mean())


def test_separation_zones_of_the_codes_constants():
    # Office: flat below 0.98, pushed down, dead between 1.98 and 3.98, pushed up, flat from 4.98 on
    crs = torch.tensor([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], requires_grad=True)
    separation(crs, 2.98, 1.0, clip=2.0, inside=-1.0).sum().backward()
    assert crs.grad.tolist() == [0, 1, 0, 0, -1, 0]
    assert separation(torch.tensor([2.98]), 2.98, inside=-1.0).item() == -1.0


def test_separation_module_is_equation_11():
    a, b = heads(5)
    _, crs, ent = divergences((a, b))
    tilde = sum((-(v - 1.6).abs() * ((v - 1.6).abs() > 1)).mean() for v in (crs, ent))
    torch.testing.assert_close(TargetSeparation(1.6)((a, b)), tilde)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_stay_finite(dtype):
    a = torch.tensor([[60000.0, -60000.0, 0.0]], dtype=dtype, requires_grad=True)
    b = torch.tensor([[-60000.0, 60000.0, 0.0]], dtype=dtype, requires_grad=True)
    loss = (
        sum(v.sum() for v in divergences((a, b)))
        + joint_loss((a, b), torch.tensor([2])).sum()
        + mean_distribution_entropy((a, b)).sum()
    )
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(a.grad).all() and torch.isfinite(b.grad).all()


def test_empty_mask_keeps_the_graph_and_survives_infinities():
    values = torch.tensor([1.0, float("inf")], requires_grad=True)
    mean = pooled_mean(values, torch.tensor([False, False]))
    mean.backward()
    assert mean.item() == 0 and values.grad.tolist() == [0, 0]
    assert pooled_mean(values.detach(), torch.tensor([True, False])).item() == 1


def test_schedule_ends_at_the_published_factor():
    assert inverse_decay(1) == pytest.approx(0.1656, abs=1e-4) and inverse_decay(3) == inverse_decay(1)


def test_players_move_only_who_is_named_and_name_what_is_not_finite():
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    play = SGDPlayers({"A": [{"params": [a], "lr_mult": 0.1}], "B": [{"params": [b]}]}, lr=0.5, total_steps=10)
    play.begin(0)
    play.descend({"x": (a * b).sum()}, "A")
    assert (a < 1).all() and torch.equal(b, torch.ones(2)) and b.grad is None
    before = a.detach().clone()
    with pytest.raises(NonFiniteLoss, match="'bad' is nan at step 3"):
        play.begin(3)
        play.descend({"x": a.sum(), "bad": (a * float("nan")).sum()}, "A")
    assert torch.equal(a, before)


def test_a_gradient_that_lies_otherwise_in_memory_steps_the_right_weights():
    start = torch.arange(12.0).view(3, 4)
    turned = torch.arange(12.0).view(4, 3).t()
    for loss in (lambda w: (w * turned).sum(), lambda w: w.sum(), lambda w: w.t().contiguous()[1].sum()):
        ours, plain = (torch.nn.Parameter(start.clone()) for _ in range(2))
        play = SGDPlayers({"C": [{"params": [ours]}]}, lr=0.1, total_steps=10)
        play.begin(0)
        play.descend({"loss": loss(ours)}, "C")
        loss(plain).backward()
        torch.optim.SGD([plain], lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True).step()
        torch.testing.assert_close(ours, plain)


def test_players_equal_plain_sgd_over_several_steps():
    def quadratic(w):
        return ((w - torch.tensor([1.0, -2.0])) ** 2).sum()

    ours, theirs = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    play = SGDPlayers({"A": [{"params": [ours], "lr_mult": 0.1}]}, lr=0.2, total_steps=5)
    sgd = torch.optim.SGD([theirs], lr=1.0, momentum=0.9, weight_decay=5e-4, nesterov=True, foreach=False)
    for step in range(5):
        play.begin(step)
        play.descend({"q": quadratic(ours)}, "A")
        sgd.param_groups[0]["lr"] = 0.02 * inverse_decay(step / 5)
        sgd.zero_grad()
        quadratic(theirs).backward()
        sgd.step()
    torch.testing.assert_close(ours, theirs)


def test_replay_skips_layers_in_evaluation_mode():
    bn = torch.nn.BatchNorm1d(3)
    replay, before = BatchNormReplay(bn), bn.running_mean.clone()
    bn.eval()
    replay.before()
    bn(torch.randn(4, 3))
    replay.after()
    replay.apply()
    assert torch.equal(bn.running_mean, before) and bn.num_batches_tracked == 0


BAD = {
    "one head": (lambda: divergences([torch.zeros(2, 3)]), "two or more heads"),
    "a tensor instead of heads": (lambda: cross_divergence(torch.zeros(2, 3)), "two or more heads"),
    "heads of different widths": (lambda: cross_divergence([torch.zeros(2, 3), torch.zeros(2, 4)]), "two or more heads"),
    "one head with labels": (lambda: joint_loss([torch.zeros(2, 3)], torch.tensor([0, 1]), lam=0.0), "two or more heads"),
    "an empty batch": (lambda: joint_loss([torch.zeros(0, 3)] * 2, torch.zeros(0).long()), "batch is empty"),
    "an empty selection": (lambda: SmallLossSelection(0.2)([torch.zeros(0, 3)] * 2, torch.zeros(0).long()), "batch is empty"),
    "an empty separation": (lambda: TargetSeparation(1.0)([torch.zeros(0, 3)] * 2), "batch is empty"),
    "a label of -100": (lambda: joint_loss([torch.zeros(2, 3)] * 2, torch.tensor([0, -100])), "labels run from -100 to 0"),
    "a label of K": (lambda: joint_loss([torch.zeros(2, 3)] * 2, torch.tensor([0, 3])), r"expected 0\.\.2"),
    "a negative drop rate": (lambda: SmallLossSelection(-0.1), r"drop_rate=-0\.1"),
    "nothing to keep from": (lambda: num_kept(0, 0.2), "at least one sample"),
    "a drop rate above one": (lambda: num_kept(4, 1.5), r"drop_rate=1\.5"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_a_public_loss_is_a_clear_error(name):
    call, message = BAD[name]
    with pytest.raises(UserError, match=message):
        call()
