"""GearNet against its equations written out on small numbers."""

import math

import pytest
import torch
from test_bank_methods import B_S, B_T, N_T, SPLIT, K, Tiny, batches
from torch import nn

from tllib_ext.errors import UserError
from tllib_ext.methods.context import Context
from tllib_ext.methods.gearnet import GearNet, GearNetHparams
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.training.players import SGDPlayers

STEPS = 30


def build(backbone=None, **hp):
    torch.manual_seed(0)
    method = GearNet(backbone or Tiny(), SPLIT, GearNetHparams(bottleneck=6, hidden=7, **hp))
    g = torch.Generator().manual_seed(3)
    source, target = torch.randn(B_S, 8, generator=g), torch.randn(N_T, 8, generator=g)
    context = Context(STEPS, B_S, N_T, seed=1, source_features=lambda: source, target_features=lambda: target)
    method.prepare(context)
    for layer in method.modules():  # the discriminator's masks are chance
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return method.train()


def probabilities(rows, seed):
    g = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(rows, K, generator=g)).softmax(1)


@pytest.mark.parametrize("step", [2, 8, 12, 18, 22, 28])
def test_the_loss_of_every_stage_is_the_equation(step, monkeypatch):
    stage, done = divmod(step, 10)
    method, (source, target) = build(), next(batches())
    method.old_source.rows.copy_(probabilities(B_S, 5))
    method.old_target.rows.copy_(probabilities(N_T, 6))
    old_s, old_t = method.old_source.rows[source.index], method.old_target.rows[target.index]
    twin = build()
    z = twin.bottleneck(twin.backbone(torch.cat([source.x, target.x]))).detach()
    p, d = twin.head(z).softmax(1).tolist(), torch.sigmoid(twin.discriminator(z)).tolist()
    of_source, of_target = list(range(B_S)), list(range(B_S, B_S + B_T))
    if stage == 1:  # from the target, with the labels that the first stage gave it, to the source
        learnt, far, q = of_target, of_source, old_s.tolist()
        labels = old_t.argmax(1).tolist()
        known = [-sum(v * math.log(v) for v in row) <= 0.5 * math.log(K) for row in old_t.tolist()]
        assert 0 < sum(known) < B_T
    else:
        learnt, far, q = of_source, of_target, old_t.tolist()
        labels, known = source.y.tolist(), [True] * B_S
    terms = {}
    play = SGDPlayers(method.players(), lr=0.0, total_steps=STEPS)
    descend = play.descend
    monkeypatch.setattr(play, "descend", lambda given, *names: (terms.update(given), descend(given, *names))[1])
    play.begin(step)
    method.update(source, target, step, play)

    ce = [-math.log(p[i][y]) for i, y in zip(learnt, labels)]
    w = [1.0 if done < 6 else float(loss - math.log(1 - d[i]) < 2 * math.log(2)) for loss, i in zip(ce, learnt)]
    expected = sum(a * b for a, b, c in zip(w, ce, known) if c) / sum(known)
    assert terms["source"].item() == pytest.approx(expected, rel=1e-4)
    near = sum(-a * math.log(d[i]) for a, i, c in zip(w, learnt, known) if c)
    adversarial = (near + sum(-math.log(1 - d[i]) for i in far)) / (sum(known) + len(far))
    assert terms["adversarial"].item() == pytest.approx(adversarial, rel=1e-4)
    h = sum(-sum(v * math.log(v) for v in p[i]) for i in far) / len(far)
    assert terms["entropy"].item() == pytest.approx(0.1 * h, rel=1e-4)
    if stage == 0:
        assert "old" not in terms
    else:
        pairs = [(a, b) for i, row in zip(far, q) for a, b in zip(p[i], row)]
        old = sum(a * math.log(a / b) + b * math.log(b / a) for a, b in pairs) / len(far)
        assert terms["old"].item() == pytest.approx(0.1 * old, rel=1e-4)


def test_some_samples_are_dropped_late_in_a_stage():
    method, (source, target) = build(), next(batches())
    play = SGDPlayers(method.players(), lr=0.0, total_steps=STEPS)
    kept = [method.update(source, target, step, play)["kept"].item() for step in (2, 8)]
    assert kept[0] == 1 and kept[1] < 1


def test_a_stage_begins_with_new_layers_and_the_old_outputs():
    method, (source, target) = build(FeatureBottleneck(6, 8)), next(batches())
    features = method.context.target_features()
    expected = method.head(method.bottleneck(features)).softmax(1).detach()
    before = {name: value.clone() for name, value in method.named_parameters()}
    play = SGDPlayers(method.players(), lr=0.0, total_steps=STEPS)
    method.update(source, target, 9, play)
    assert not method.old_target.rows.any()
    method.update(source, target, 10, play)
    torch.testing.assert_close(method.old_target.rows, expected)
    assert not any(torch.equal(value, before[name]) for name, value in method.named_parameters() if name.endswith("0.weight"))
    again = build(FeatureBottleneck(6, 8))
    torch.manual_seed(99)  # whatever other chance there is
    again._begin(1)
    for ours, theirs in zip(method.parameters(), again.parameters()):
        assert torch.equal(ours, theirs)
    images = build()  # a trained backbone is not thrown away
    weight = images.backbone[0].weight.clone()
    images._begin(1)
    assert torch.equal(images.backbone[0].weight, weight)


def test_no_label_in_an_odd_stage_and_the_schedule():
    method, (source, target) = build(), next(batches())
    method.old_target.rows.fill_(1 / K)  # every target image is unknown
    method.old_source.rows.fill_(1 / K)
    log = method.update(source, target, 15, SGDPlayers(method.players(), lr=0.0, total_steps=STEPS))
    assert log["loss"].item() == 0 and log["kept"].item() == 0
    rates = [method.lr_factor(step, 30) for step in range(30)]
    assert rates[0] == rates[10] == rates[20] == 1 and rates[9] == pytest.approx(10**-0.75)
    assert [method._stage(step, 4)[0] for step in range(4)] == [0, 0, 1, 2]  # a short run ends in an even stage
    assert [method._stage(step, 2)[0] for step in range(2)] == [0, 0]


def test_settings():
    with pytest.raises(UserError, match="stages=4: expected an odd number"):
        GearNetHparams(stages=4)
    with pytest.raises(UserError, match="source_features"):
        GearNet(Tiny(), SPLIT).prepare(Context(steps=3))
