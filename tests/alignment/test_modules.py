"""The modules of Steps A to C against loops over numbers, their reductions, masks, ties and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.alignment.divergence import (
    HeadMinimax,
    ImageClassifierHead,
    SmallLossSelection,
    TargetSeparation,
    separation,
    small_loss_mask,
    unknown_by_divergence,
)
from tllib_ext.alignment.quantities import reduced
from tllib_ext.errors import UserError

DELTA = math.log(5)
#: arguments of the authors' code
CODE = dict(clip=2.0, valid=2.0, entropy="mean_dist", ent_weight=0.5, eps=1e-5, inside=-1.0)
SEPARATIONS = {
    "paper": {}, "code": CODE, "kl": dict(ent_weight=-1.0), "no crs": dict(crs_weight=0.0), "no ent": dict(ent_weight=0.0),
    "narrow": dict(m=0.3, clip=0.5), "weights": dict(crs_weight=0.7, ent_weight=0.2), "valid": dict(valid=1.1),
    "nothing valid": dict(valid=0.0), "mean of the heads": dict(entropy="mean_dist"),
}  # fmt: skip


def heads(seed, n=8, k=5, scale=2.0, h=2):
    """Logits in float64 that agree here and there."""
    g = torch.Generator().manual_seed(seed)
    shared = scale * torch.randn(n, k, generator=g, dtype=torch.float64)
    return tuple(shared + scale * torch.rand(n, 1, generator=g).double() * torch.randn(n, k, generator=g) for _ in range(h))


def labels(seed, n=8, k=5):
    return torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))


# --- longhand: loops over Python's numbers, nothing of the package -----------------------------------------------------


def softmax(row):
    total = sum(math.exp(v) for v in row)
    return [math.exp(v) / total for v in row]


def each(logits):
    """The two heads' distributions of every sample."""
    return [(softmax(a), softmax(b)) for a, b in zip(*(head.tolist() for head in logits))]


def H(p, q):
    return -sum(a * math.log(b) for a, b in zip(p, q))


def crs(p, q):
    return H(p, q) + H(q, p)


def source_losses(logits, y, lam):
    kl = [
        sum(a * math.log(a / b) for a, b in zip(p, q)) + sum(b * math.log(b / a) for a, b in zip(p, q)) for p, q in each(logits)
    ]
    return [-math.log(p[c]) - math.log(q[c]) + lam * d for (p, q), c, d in zip(each(logits), y.tolist(), kl)]


def tilde(v, m, clip, inside):
    gap = abs(v - DELTA)
    return -min(gap, clip) if gap > m else inside


def separations(logits, m=1.0, clip=math.inf, valid=math.inf, entropy="sum", crs_weight=1.0, ent_weight=1.0, eps=0.0, inside=0.0):
    """The crs part of each valid sample (None of the others) and the entropy part of each."""
    parts = []
    for p, q in each(logits):
        mean = [(a + b) / 2 for a, b in zip(p, q)]
        ent = H(p, p) + H(q, q) if entropy == "sum" else -2 * sum(a * math.log(a + eps) for a in mean)
        first = tilde(crs(p, q), m, clip, inside) if crs(p, q) < valid * DELTA else None
        parts.append((None if first is None else crs_weight * first, ent_weight * tilde(ent, m, math.inf, inside)))
    return parts


def mean(values):
    return sum(values) / len(values) if values else 0.0


@pytest.mark.parametrize("drop_rate, lam", [(0.0, 0.0), (0.25, 0.1), (0.5, 1.0), (1.0, 0.1)])
def test_selection_longhand(drop_rate, lam):
    logits, y = heads(1), labels(2)
    expected = source_losses(logits, y, lam)
    keep = max(1, int((1 - drop_rate) * 8))
    chosen = sorted(range(8), key=lambda i: expected[i])[:keep]
    selection = SmallLossSelection(drop_rate, lam)
    losses = selection.losses(logits, y)
    assert losses.tolist() == pytest.approx(expected, abs=1e-12)
    assert selection.kept(losses).nonzero().flatten().tolist() == sorted(chosen)
    assert selection(logits, y).item() == pytest.approx(mean([expected[i] for i in chosen]), abs=1e-12)
    assert SmallLossSelection(drop_rate, lam, "sum")(logits, y).item() == pytest.approx(sum(expected[i] for i in chosen))
    each_loss = SmallLossSelection(drop_rate, lam, "none")(logits, y).tolist()
    assert each_loss == pytest.approx([expected[i] if i in chosen else 0.0 for i in range(8)], abs=1e-12)


@pytest.mark.parametrize("name", SEPARATIONS)
def test_separation_longhand(name):
    options = SEPARATIONS[name]
    for seed in range(5):
        logits = heads(seed)
        expected = separations(logits, **options)
        first, second = [a for a, _ in expected if a is not None], [b for _, b in expected]
        value = TargetSeparation(DELTA, **options)(logits).item()
        assert value == pytest.approx(mean(first) + mean(second), abs=1e-12)
        assert TargetSeparation(DELTA, **options, reduction="sum")(logits).item() == pytest.approx(sum(first) + sum(second))
        each_value = TargetSeparation(DELTA, **options, reduction="none")(logits).tolist()
        assert each_value == pytest.approx([(a or 0.0) + b for a, b in expected], abs=1e-12)
        parts = TargetSeparation(DELTA, **options).parts(logits)
        assert set(parts) == {part for part in ("crs", "ent") if options.get(f"{part}_weight") != 0}


def test_separation_is_the_authors_functions():
    """``cross_entropy_margin`` and ``entropy_margin`` of their utils/loss.py, written out for thr = delta / 2, margin = 1 / 2."""
    for seed in range(5):
        a, b = heads(seed, n=30)
        p, q = a.softmax(1), b.softmax(1)
        both = -(p.log() * q).sum(1) - (q.log() * p).sum(1)
        crs_term = -(both - DELTA).abs().clamp(1.0, 2.0)[both < 2 * DELTA].mean()
        m = (p + q) / 2
        ent_term = -((-(m * (m + 1e-5).log()).sum(1) - DELTA / 2).abs().clamp(min=0.5)).mean()
        torch.testing.assert_close(TargetSeparation(DELTA, **CODE)((a, b)), crs_term + ent_term, rtol=0, atol=1e-12)


@pytest.mark.parametrize("clamp", [None, 1.5])
def test_minimax_longhand(clamp):
    for seed in range(5):
        logits = heads(seed)
        values = [crs(p, q) for p, q in each(logits)]
        clamped = [v if clamp is None else min(v, clamp * DELTA) for v in values]
        minimax = HeadMinimax(DELTA, known_margin=0.2, clamp=clamp)
        known = minimax.known(logits)
        assert known.tolist() == [v < DELTA - 0.2 for v in values]
        assert minimax.apart(logits).item() == pytest.approx(-mean(clamped), abs=1e-12)
        chosen = [v for v, k in zip(clamped, known) if k]
        assert minimax.together(logits, known).item() == pytest.approx(sum(chosen) / 8, abs=1e-12)
        selected = HeadMinimax(DELTA, known_margin=0.2, clamp=clamp, over="selected")
        assert selected.together(logits, known).item() == pytest.approx(mean(chosen), abs=1e-12)
        one_by_one = HeadMinimax(DELTA, clamp=clamp, reduction="none")
        assert one_by_one.apart(logits).tolist() == pytest.approx([-v for v in clamped])
        assert one_by_one.together(logits, known).tolist() == pytest.approx([v if k else 0.0 for v, k in zip(clamped, known)])
        assert unknown_by_divergence(logits, DELTA).tolist() == [v > DELTA for v in values]


def test_a_head_is_pooling_then_a_cosine():
    head = ImageClassifierHead(4, 3)
    maps = torch.randn(2, 4, 5, 6)
    for row, logits in zip(maps, head(maps).tolist()):
        f = [[v for line in channel for v in line] for channel in row.tolist()]
        f = [sum(channel) / len(channel) for channel in f]
        norm = math.sqrt(sum(v * v for v in f))
        expected = [sum(w * v for w, v in zip(weights, f)) / norm / 0.05 for weights in head.head.weight.tolist()]
        assert logits == pytest.approx(expected, rel=1e-4)
    head.normalise_rows()
    assert torch.allclose(head.head.weight.norm(dim=1), torch.ones(3))
    flat = ImageClassifierHead(4, 3, temperature=0.5, pool_layer=torch.nn.Identity())
    flat.head.load_state_dict(head.head.state_dict())
    torch.testing.assert_close(flat(maps.mean((2, 3))), head(maps) / 10)


# --- properties ---------------------------------------------------------------------------------------------------------


def terms(reduction):
    """Name -> the term of every module as a function of logits and labels, for one reduction."""
    minimax = HeadMinimax(DELTA, 0.2, 1.5, reduction=reduction)
    found = {"selection": SmallLossSelection(0.3, 0.1, reduction), "apart": lambda logits, y: minimax.apart(logits),
             "together": lambda logits, y: minimax.together(logits, minimax.known(logits))}  # fmt: skip
    for name, options in SEPARATIONS.items():
        loss = TargetSeparation(DELTA, **options, reduction=reduction)
        found[f"separation {name}"] = lambda logits, y, loss=loss: loss(logits)
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0.1, 6))
def test_the_reductions_agree(seed, n, scale):
    logits, y = heads(seed, n, scale=scale), labels(seed, n)
    none, total, mean_of = terms("none"), terms("sum"), terms("mean")
    for name in none:
        values = none[name](logits, y)
        assert values.shape == (n,)
        torch.testing.assert_close(values.sum(), total[name](logits, y))
        if name in ("apart", "together", "separation paper", "separation kl", "separation weights"):  # no mask of their own
            torch.testing.assert_close(values.mean(), mean_of[name](logits, y))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_order_of_the_samples_does_not_matter(seed, n, chance):
    logits, y = heads(seed, n), labels(seed, n)
    order = list(range(n))
    chance.shuffle(order)
    for name, term in terms("mean").items():
        torch.testing.assert_close(term([head[order] for head in logits], y[order]), term(logits, y), msg=name)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 40))
def test_ties_of_the_selection_go_to_the_earlier_sample(values, keep):
    keep = min(keep, len(values))
    chosen = sorted(range(len(values)), key=lambda i: (values[i], i))[:keep]
    mask = small_loss_mask(torch.tensor(values, dtype=torch.float32), keep)
    assert mask.nonzero().flatten().tolist() == sorted(chosen)


def test_ties_of_the_selection_in_a_batch_of_equal_samples():
    """Repeated images have equal losses; of a large batch an unstable sort keeps others than the first."""
    row = torch.tensor([[1.0, 0.0, 0.0]])
    logits, y = (row.repeat(600, 1), row.repeat(600, 1)), torch.zeros(600, dtype=torch.long)
    selection = SmallLossSelection(0.5)
    assert selection.kept(selection.losses(logits, y)).tolist() == [True] * 300 + [False] * 300


@pytest.mark.parametrize("over", ["batch", "selected"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_empty_mask_gives_a_zero_that_keeps_the_graph(over, reduction):
    logits = [head.requires_grad_() for head in heads(3)]
    nobody = torch.zeros(8, dtype=torch.bool)
    value = HeadMinimax(DELTA, over=over, reduction=reduction).together(logits, nobody)
    value = value + TargetSeparation(DELTA, valid=0.0, ent_weight=0.0, reduction=reduction)(logits)
    assert (value == 0).all() and value.requires_grad
    value.sum().backward()
    assert all((head.grad == 0).all() for head in logits)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_infinite_value_outside_the_mask_stays_outside(reduction):
    values = torch.tensor([1.0, math.inf, math.nan, 3.0], requires_grad=True)
    found = reduced(values, reduction, torch.tensor([True, False, False, True]))
    assert found.sum().item() == {"mean": 2.0, "sum": 4.0, "none": 4.0}[reduction]
    found.sum().backward()
    assert values.grad.tolist() == ([0.5, 0, 0, 0.5] if reduction == "mean" else [1, 0, 0, 1])


def test_a_separation_without_parts_is_zero():
    assert TargetSeparation(DELTA, crs_weight=0.0, ent_weight=0.0)(heads(1)).item() == 0.0


# --- gradients ----------------------------------------------------------------------------------------------------------


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors, allow_unused=True)


def network():
    torch.manual_seed(0)
    g = torch.nn.Linear(6, 4).double()
    f1, f2 = (ImageClassifierHead(4, 5, temperature=1.0, pool_layer=torch.nn.Identity()).double() for _ in range(2))
    return g, f1, f2, torch.randn(9, 6, dtype=torch.float64)


def test_apart_reaches_the_heads_and_not_g_where_features_are_detached():
    g, f1, f2, x = network()
    minimax, f = HeadMinimax(3.0), g(x)
    of_g, of_f1, of_f2 = gradients(minimax.apart((f1(f.detach()), f2(f.detach()))), g.weight, f1.head.weight, f2.head.weight)
    assert of_g is None and of_f1.abs().max() > 0 and of_f2.abs().max() > 0
    before = minimax.apart((f1(f), f2(f)))
    with torch.no_grad():
        f1.head.weight -= 0.1 * of_f1
        f2.head.weight -= 0.1 * of_f2
    assert minimax.apart((f1(f), f2(f))) < before, "a step of the heads makes crs larger"


def test_together_reaches_g_through_the_known_samples_alone():
    g, f1, f2, x = network()
    minimax, x = HeadMinimax(3.0), x.requires_grad_()
    known = torch.arange(9) % 3 == 0
    f = g(x)
    loss = minimax.together((f1(f), f2(f)), known)
    of_x, of_g = gradients(loss, x, g.weight)
    assert (of_x[~known] == 0).all() and (of_x[known].abs().amax(1) > 0).all() and of_g.abs().max() > 0
    with torch.no_grad():
        g.weight -= 0.1 * of_g
    f = g(x)
    assert minimax.together((f1(f), f2(f)), known) < loss, "a step of G makes crs smaller"


def test_beyond_the_clamp_there_is_no_gradient():
    logits = [head.requires_grad_() for head in heads(2, n=30, scale=4.0)]
    minimax = HeadMinimax(DELTA, clamp=1.2)
    beyond = HeadMinimax(DELTA).crs(logits) > 1.2 * DELTA
    assert 0 < beyond.sum() < 30
    (of_first, _) = gradients(minimax.apart(logits), *logits)
    assert (of_first[beyond] == 0).all() and (of_first[~beyond].abs().amax(1) > 0).all()


def test_the_dead_zone_ends_beyond_its_border():
    """At a distance of exactly m there is no push yet: the condition of the equation is strict."""
    value = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], requires_grad=True)  # exact in binary: |v - 3| = 2, 1, 0, 1, 2
    found = separation(value, delta=3.0, m=1.0)
    assert found.tolist() == [-2.0, 0.0, 0.0, 0.0, -2.0]
    found.sum().backward()
    assert value.grad.tolist() == [1.0, 0.0, 0.0, 0.0, -1.0]
    inside = separation(value, delta=3.0, m=1.0, clip=2.0, inside=-1.0)
    assert inside.tolist() == [-2.0, -1.0, -1.0, -1.0, -2.0]


def test_known_and_unknown_are_strict():
    doubt = (torch.zeros(1, 4, dtype=torch.float64),) * 2
    border = HeadMinimax(0.0).crs(doubt).item()
    assert not HeadMinimax(border + 1.0, known_margin=1.0).known(doubt).item()
    assert not unknown_by_divergence(doubt, border).item()
    assert unknown_by_divergence(doubt, border - 1e-9).item()


def test_a_crs_on_the_border_of_validity_is_not_valid():
    doubt = (torch.zeros(1, 4, dtype=torch.float64),) * 2
    border = HeadMinimax(0.0).crs(doubt).item()
    for valid, gap in ((2.0, 0.0), (2.0 + 1e-9, border / 2)):
        separate = TargetSeparation(border / 2, m=0.1, valid=valid, ent_weight=0.0)
        assert separate(doubt).item() == pytest.approx(-gap)


@pytest.mark.parametrize("batch, rate, kept", [(20, 0.9, 2), (10, 0.7, 3), (36, 1.0, 1), (1, 0.0, 1), (7, 0.5, 3)])
def test_the_number_kept_is_not_lost_to_rounding(batch, rate, kept):
    assert SmallLossSelection(rate).kept(torch.rand(batch)).sum() == kept


BAD = {
    "reduction": (lambda: SmallLossSelection(0.2, reduction="average"), "reduction='average': expected mean, sum or none"),
    "entropy": (lambda: TargetSeparation(1.0, entropy="mean"), "entropy='mean': expected sum or mean_dist"),
    "over": (lambda: HeadMinimax(1.0, over="known"), "over='known': expected batch or selected"),
    "drop rate": (lambda: SmallLossSelection(1.2), r"drop_rate=1\.2"),
    "heads": (lambda: unknown_by_divergence(torch.zeros(2, 3), 1.0), "two or more heads"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    call, message = BAD[name]
    with pytest.raises(UserError, match=message):
        call()
