"""CMU against its equations written out on small numbers."""

import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from test_bank_methods import B_S, B_T, N_T, SPLIT, K, Tiny, batches

from tllib_ext.errors import UserError
from tllib_ext.methods.cmu import Cmu, CmuHparams, uncertainties
from tllib_ext.methods.context import Context
from tllib_ext.training.players import SGDPlayers

TARGET = torch.randn(N_T, 8, generator=torch.Generator().manual_seed(4))


def build(**hp):
    torch.manual_seed(0)
    method = Cmu(Tiny(), SPLIT, CmuHparams(dropout=0.0, warmup=0.0, bottleneck=6, hidden=7, **hp))
    method.prepare(Context(steps=10, num_target=N_T, target_features=lambda: TARGET))
    return method.train()


def certainties(q):
    """Of one image, q = the heads' outputs."""
    entropy = sum(-sum(v * math.log(v) for v in row) for row in q) / 5 / math.log(K)
    spread = sum(statistics.stdev(row[k] for row in q) for k in range(K)) / K
    return [1 - entropy, 1 - spread, sum(max(row) for row in q) / 5]


def outputs(method, z):
    return [[head(row).softmax(0).tolist() for head in method.ensemble] for row in z]


def test_uncertainties_by_hand():
    logits = torch.randn(5, 3, K, generator=torch.Generator().manual_seed(1))
    expected = [certainties(logits[:, i].softmax(1).tolist()) for i in range(3)]
    torch.testing.assert_close(uncertainties(logits), torch.tensor(expected))


def test_the_loss_is_the_equations(monkeypatch):
    method, (source, target) = build(rounds=1), next(batches())
    method.class_weights.copy_(torch.arange(K) / K)
    play = SGDPlayers(method.players(), lr=0.01, total_steps=10)
    terms, descend = {}, play.descend
    monkeypatch.setattr(play, "descend", lambda given, *names: (terms.update(given), descend(given, *names))[1])
    twin = build()
    z_s, z_t = (twin.bottleneck(twin.backbone(x)).detach() for x in (source.x, target.x))
    d = torch.sigmoid(twin.discriminator(torch.cat([z_s, z_t]))).tolist()
    play.begin(1)
    method.update(source, target, 1, play)
    ce = F.cross_entropy(twin.head(z_s), source.y).item()
    ensemble = sum(F.cross_entropy(head(z_s), source.y).item() for head in twin.ensemble)
    of_source = sum(y / K * -math.log(d[i]) for i, y in enumerate(source.y.tolist())) / B_S
    w = [sum(certainties(q)) / 3 for q in outputs(twin, z_t)]
    of_target = sum(-w[i] * math.log(1 - d[B_S + i]) for i in range(B_T)) / B_T
    assert terms["source"].item() == pytest.approx(ce, rel=1e-4)
    assert terms["ensemble"].item() == pytest.approx(ensemble, rel=1e-4)
    assert terms["adversarial"].item() == pytest.approx((of_source + of_target) / 2, rel=1e-4)


def test_class_weights_and_the_rule_use_the_whole_target():
    method = build(w_0=0.6)
    method._weigh_classes()
    method.eval()
    z = method.bottleneck(TARGET).detach()
    raw = [certainties(q) for q in outputs(method, z)]
    spans = [(min(c), max(c)) for c in zip(*raw)]
    scaled = [sum((v - low) / (high - low) for v, (low, high) in zip(row, spans)) / 3 for row in raw]
    chosen = [i for i, value in enumerate(scaled) if value >= 0.6]
    assert 0 < len(chosen) < N_T
    mean = [float(sum(method.head(z[i]).softmax(0)[k] for i in chosen)) / len(chosen) for k in range(K)]
    expected = [(v - min(mean)) / (max(mean) - min(mean)) for v in mean]
    assert method.class_weights.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)
    method.refresh()
    method.backbone = torch.nn.Identity()
    found = method.predict(TARGET)
    assert found.score.tolist() == pytest.approx([1 - value for value in scaled], rel=1e-3, abs=1e-5)
    assert found.unknown.tolist() == [value < 0.6 for value in scaled] and method.threshold == pytest.approx(0.4)


def test_no_certain_image_and_settings():
    method = build(w_0=0.999)
    method.context.target_features = lambda: TARGET[:2].expand(2, 8)
    for head in method.ensemble:  # equal outputs: no component has a range
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    method._weigh_classes()
    assert (method.class_weights == 1).all()
    with pytest.raises(UserError, match="w_0=1"):
        CmuHparams(w_0=1.0)
    with pytest.raises(UserError, match="target_features"):
        Cmu(Tiny(), SPLIT).prepare(Context(steps=3))
