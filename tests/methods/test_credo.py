"""CREDO: what it believes, what it does with that, and that nobody tells it the rate."""

import numpy as np
import pytest
import torch

from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.credo import Credo, CredoHparams
from tllib_ext.methods.divergence import Divergence
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.players import SGDPlayers
from tllib_ext.vision.datasets.noisy import draw_labels, transition_matrix

K, EACH, DIM = 5, 40, 16
SPLIT = LabelSplit(("a", "b", "c"), ("d", "e"), ("f",))
TRUE = np.repeat(np.arange(K), EACH)
FEATURES = torch.from_numpy(
    (4 * np.eye(DIM)[TRUE] + np.random.default_rng(0).normal(size=(K * EACH, DIM)) * 1.1).astype(np.float32)
)


def noisy(kind="pair", rate=0.4, seed=3):
    return draw_labels(TRUE, transition_matrix(kind, rate, K), seed)


def context(labels, frozen=True, **more):
    facts = dict(steps=100, num_source=len(labels), num_target=8, source_labels=labels, source_features=lambda: FEATURES)
    return Context(**{**facts, "source_inputs": FEATURES if frozen else None, **more})


def credo(labels, method=Credo, hparams=None, **more):
    torch.manual_seed(0)
    made = method(FeatureBottleneck(DIM, 12), SPLIT, hparams)
    made.prepare(context(labels, **more))
    return made


def test_it_corrects_weighs_and_drops_by_its_own_doubt():
    given = noisy()
    method = credo(given)
    model = method.label_model
    assert (given == TRUE).mean() < 0.7 and (method.labels.numpy() == TRUE).mean() > 0.9
    confidence = model.responsibilities.max(1)
    assert np.allclose(method.weights.numpy(), confidence / confidence.mean(), rtol=1e-5)
    assert method.drop_rate == pytest.approx(max(1 - confidence.mean(), min(0.1, model.rate)), abs=1e-6)
    assert np.array_equal(method.balance_labels(given), method.labels.numpy())


def test_nobody_tells_it_the_rate():
    a, b = (credo(noisy(), rate=rate) for rate in (0.0, 0.45))
    assert a.drop_rate == b.drop_rate and torch.equal(a.labels, b.labels) and torch.equal(a.weights, b.weights)
    assert credo(noisy(), hparams=CredoHparams(drop_rate=0.3)).drop_rate == 0.3


def test_clean_labels_stay_and_nothing_is_dropped():
    method = credo(TRUE)
    assert np.array_equal(method.labels.numpy(), TRUE) and method.drop_rate == 0.0
    assert torch.allclose(method.weights, torch.ones(len(TRUE)), atol=1e-3)


@pytest.mark.parametrize("doubt", [0.0, 1e-6, 0.01])
def test_the_faintest_doubt_costs_no_image(doubt):
    method = credo(TRUE)
    posterior = np.eye(K)[TRUE] * (1 - doubt) + doubt * np.eye(K)[(TRUE + 1) % K]
    model = type(method.label_model)(**{**vars(method.label_model), "responsibilities": posterior, "rate": doubt})
    method._use(model, method._context)
    assert method.drop_rate == (0.0 if doubt < 1e-3 else pytest.approx(doubt, rel=1e-3))


def test_parts_can_be_switched_off():
    given = noisy()
    method = credo(given, hparams=CredoHparams(correct=False, weighted=False))
    assert np.array_equal(method.labels.numpy(), given) and torch.equal(method.weights, torch.ones(len(given)))


def batches(given, seed=0):
    index = torch.from_numpy(np.random.default_rng(seed).permutation(len(given))[:10])
    target = FEATURES[torch.arange(0, len(FEATURES), 20)] + 0.1
    return Batch(FEATURES[index], torch.from_numpy(given)[index], index), Batch(target, None, torch.arange(len(target)))


def test_the_source_loss_longhand():
    given = noisy()
    method = credo(given)
    method.train()
    source, target = batches(given)
    logits = method.heads(method.backbone(source.x))
    method.heads.normalise_rows()
    logits = method.heads(method.backbone(source.x))
    labels = torch.from_numpy(method.label_model.responsibilities.argmax(1))[source.index]
    each = []
    for i, y in enumerate(labels):
        p, q = (head[i].softmax(0) for head in logits)
        kl = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
        each.append(-p[y].log() - q[y].log() + method.lam * kl)
    each = torch.stack(each)
    keep = each.argsort()[: int((1 - method.drop_rate) * len(each))]
    expected = (method.weights[source.index] * each)[keep].mean()
    play = SGDPlayers(method.players(), total_steps=100)
    play.begin(50)
    said = method.update(source, target, 50, play)
    assert said["loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert said["kept"].item() == pytest.approx(len(keep) / len(each))


def test_with_clean_labels_a_step_is_the_papers():
    ends = []
    for method in (credo(TRUE, hparams=CredoHparams(weighted=False)), credo(TRUE, Divergence)):
        method.train()
        play = SGDPlayers(method.players(), total_steps=100)
        for step in range(3, 9):  # past the warm-up, which is 4 steps of 100
            play.begin(step)
            method.update(*batches(TRUE, step), step, play)
        ends.append(torch.cat([p.detach().flatten() for p in method.parameters()]))
    assert torch.equal(*ends)


def test_it_asks_again_while_g_trains_and_only_then():
    given, asked = noisy(), []

    def features():
        asked.append(len(asked))
        return FEATURES + len(asked)  # G has moved

    frozen = credo(given, source_features=features)
    assert asked == [] and frozen._refresh_at == set()
    method = credo(given, frozen=False, source_features=features)
    assert asked == [0] and method._refresh_at == {25, 50}
    method.train()
    play = SGDPlayers(method.players(), total_steps=100)
    for step in (24, 25, 26, 50):
        play.begin(step)
        method.update(*batches(given, step), step, play)
    assert asked == [0, 1, 2] and (method.labels.numpy() == TRUE).mean() > 0.9


def test_what_it_believes_is_part_of_its_state():
    given = noisy()
    method, other = credo(given), credo(TRUE)
    assert not torch.equal(method.weights, other.weights)
    other._context = method._context
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.labels, method.labels) and torch.equal(other.weights, method.weights)
    assert other.drop_rate == method.drop_rate
    saved = {name: value for name, value in method.state_dict().items() if not name.startswith(Credo.training_only)}
    plain = Credo(FeatureBottleneck(DIM, 12), SPLIT)
    plain.load_state_dict(saved, strict=False)
    plain.eval(), method.eval()
    assert torch.equal(plain.predict(FEATURES).probs, method.predict(FEATURES).probs)
