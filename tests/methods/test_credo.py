"""CREDO: what it estimates, what it does with that, and that nobody tells it the rate."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tllib_ext.alignment.divergence import divergences
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.credo import Credo, CredoHparams
from tllib_ext.methods.divergence import Divergence, DivergenceHparams
from tllib_ext.methods.posterior import posterior_prediction
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.checkpoint import load_method
from tllib_ext.training.players import SGDPlayers
from tllib_ext.vision.datasets.noisy import draw_labels, transition_matrix

K, EACH, DIM = 5, 40, 16
SPLIT = LabelSplit(("a", "b", "c"), ("d", "e"), ("f",))
TRUE = np.repeat(np.arange(K), EACH)
FEATURES = torch.from_numpy(
    (4 * np.eye(DIM)[TRUE] + np.random.default_rng(0).normal(size=(K * EACH, DIM)) * 1.1).astype(np.float32)
)


#: the target: three known classes, shifted, and two groups of unknown samples
TARGET_TRUE = np.repeat([0, 1, 2, K, K + 1], EACH)
TARGET = torch.from_numpy(
    (4 * np.eye(DIM)[TARGET_TRUE] + np.random.default_rng(1).normal(size=(K * EACH, DIM)) * 1.1 + 0.2).astype(np.float32)
)


def noisy(kind="pair", rate=0.4, seed=3):
    return draw_labels(TRUE, transition_matrix(kind, rate, K), seed)


def context(labels, frozen=True, **more):
    facts = dict(steps=100, num_source=len(labels), num_target=len(TARGET), source_labels=labels,
                 source_features=lambda: FEATURES, target_features=lambda: TARGET)  # fmt: skip
    inputs = {"source_inputs": FEATURES, "target_inputs": TARGET} if frozen else {}
    return Context(**{**facts, **inputs, **more})


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
    assert method.selection.drop_rate == pytest.approx(max(1 - confidence.mean(), min(0.1, model.rate)), abs=1e-6)
    assert np.array_equal(method.balance_labels(given), method.labels.numpy())


def from_a_stage(fits, part_frozen=True, say=lambda text: None):
    """The method on a network that trains, prepared with that network's features."""
    torch.manual_seed(0)
    method = Credo(FeatureBottleneck(DIM, 12), SPLIT, CredoHparams(fits=fits, warmup=0))

    @torch.no_grad()
    def features(x):
        training = method.backbone.training
        out = method.backbone.eval()(x)
        method.backbone.train(training)
        return out

    method.prepare(context(noisy(), frozen=False, part_frozen=part_frozen, say=say,
                           source_features=lambda: features(FEATURES), target_features=lambda: features(TARGET)))  # fmt: skip
    return method


@pytest.mark.parametrize("fits, trains", [(-1.0, False), (1.1, True)])
def test_from_a_stage_on_the_first_estimate_decides_whether_to_train(fits, trains):
    said = []
    method = from_a_stage(fits, say=said.append)
    assert ("the features fit, nothing is trained" in said[-1]) != trains and "cosine" in said[-1]
    before = {name: value.clone() for name, value in method.state_dict().items()}
    play = SGDPlayers(method.train().players(), 0.01, 100)
    index, given = torch.arange(12), torch.from_numpy(noisy())
    play.begin(0)
    log = method.update(Batch(FEATURES[index], given[index], index), Batch(TARGET[index], None, index), 0, play)
    assert torch.isfinite(log["loss"])
    moved = any(
        not torch.equal(value, before[name]) for name, value in method.state_dict().items() if name.startswith("backbone.")
    )
    assert moved == trains
    method.eval()
    method.refresh()
    found = method.predict(TARGET)
    if not trains:  # what mixture says
        expected = posterior_prediction(torch.from_numpy(method.target.model.predict(method.backbone(TARGET).detach().numpy())))
        assert torch.equal(found.unknown, expected.unknown) and torch.allclose(found.probs, expected.probs.float(), atol=1e-6)
        other = from_a_stage(1.1)
        load_method(other, method.state_dict(), "here")
        assert torch.equal(other.eval().predict(TARGET).probs, found.probs)
    assert from_a_stage(fits, part_frozen=False)._trains, "a whole network is trained"


def test_a_model_of_an_earlier_release_has_trained():
    method = credo(noisy())
    state = {name: value for name, value in method.state_dict().items() if name != "trains"}
    load_method(method, state, "here")
    assert method.trains


def test_nobody_tells_it_the_rate():
    a, b = (credo(noisy(), rate=rate) for rate in (0.0, 0.45))
    assert a.selection.drop_rate == b.selection.drop_rate
    assert torch.equal(a.labels, b.labels) and torch.equal(a.weights, b.weights)
    assert "noise rate" not in a.context.told, "the column of what a method was told"
    assert credo(noisy(), hparams=CredoHparams(drop_rate=0.3)).selection.drop_rate == 0.3


def test_clean_labels_stay_and_nothing_is_dropped():
    method = credo(TRUE)
    assert np.array_equal(method.labels.numpy(), TRUE) and method.selection.drop_rate == 0.0
    assert torch.allclose(method.weights, torch.ones(len(TRUE)), atol=1e-3)


@pytest.mark.parametrize("doubt", [0.0, 1e-6, 0.01])
def test_the_faintest_doubt_costs_no_image(doubt):
    method = credo(TRUE)
    posterior = np.eye(K)[TRUE] * (1 - doubt) + doubt * np.eye(K)[(TRUE + 1) % K]
    model = type(method.label_model)(**{**vars(method.label_model), "responsibilities": posterior, "rate": doubt})
    method._use(model, method.context)
    assert method.selection.drop_rate == (0.0 if doubt < 1e-3 else pytest.approx(doubt, rel=1e-3))


def batches(given, seed=0):
    index = torch.from_numpy(np.random.default_rng(seed).permutation(len(given))[:10])
    chosen = torch.arange(0, len(TARGET), 20)
    return Batch(FEATURES[index], torch.from_numpy(given)[index], index), Batch(TARGET[chosen], None, chosen)


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
        each.append(-p[y].log() - q[y].log() + method.selection.lam * kl)
    each = torch.stack(each)
    keep = each.argsort()[: int((1 - method.selection.drop_rate) * len(each))]
    expected = (method.weights[source.index] * each)[keep].mean()
    play = SGDPlayers(method.players(), total_steps=100)
    play.begin(50)
    said = method.update(source, target, 50, play)
    assert said["loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert said["kept"].item() == pytest.approx(len(keep) / len(each))


@pytest.mark.parametrize("step", [0, 50])
def test_the_audit_gets_the_losses_of_the_given_labels(step):
    """Whatever is learnt: a corrected label has a small loss, and would hide the wrong one from suspects.csv."""
    given = noisy()
    method = credo(given)
    method.train()
    source, target = batches(given)
    assert (method.labels[source.index] != source.y).any()
    rows = []
    method.audit = type("Audit", (), {"add": lambda self, *row: rows.append(row)})()
    play = SGDPlayers(method.players(), total_steps=100)
    play.begin(step)
    method.heads.normalise_rows()
    logits = [head.detach() for head in method.heads(method.backbone(source.x))]
    method.update(source, target, step, play)
    ((index, losses, seen),) = rows
    p, q = (head.softmax(1) for head in logits)
    picked = torch.arange(len(source.y))
    expected = -p[picked, source.y].log() - q[picked, source.y].log()
    if step:  # after the warm-up with the divergence
        expected = expected + method.selection.lam * (p * (p / q).log() + q * (q / p).log()).sum(1)
    assert torch.equal(index, source.index) and torch.allclose(losses, expected, rtol=1e-4)
    assert all(torch.allclose(a, b) for a, b in zip(seen, logits)) and not losses.requires_grad


def test_with_clean_labels_and_without_a_target_model_step_a_is_the_papers():
    ends = []
    for method in (credo(TRUE), credo(TRUE, Divergence, DivergenceHparams(ablate="no_minimax"))):
        method.train()
        method._posterior, method.weights = None, torch.ones(len(TRUE))
        play = SGDPlayers(method.players(), total_steps=100)
        for step in range(3, 9):  # past the warm-up, which is 4 steps of 100
            play.begin(step)
            method.update(*batches(TRUE, step), step, play)
        ends.append(torch.cat([p.detach().flatten() for p in method.parameters()]))
    assert torch.equal(*ends)


def test_the_target_terms_longhand():
    """Sign and weight of every push are those of 1 - 2 p(unknown); sure samples are learnt as labelled ones."""
    method = credo(noisy())
    posterior = torch.from_numpy(method.target.model.posterior).float()
    assert (method.target.model.labels == np.minimum(TARGET_TRUE, K)).mean() > 0.9
    method.train()
    target = batches(noisy())[1]
    logits = method.heads(method.backbone(target.x))
    crs, ent, pseudo = [], [], []
    for i, row in enumerate(posterior[target.index]):
        p, q = (head[i].softmax(0) for head in logits)
        mean = (p + q) / 2
        side = 1 - 2 * row[-1]
        crs.append(side * (-(p * q.log()).sum() - (q * p.log()).sum()).clamp(max=2 * method.delta))
        ent.append(side * -2 * (mean * (mean + 1e-5).log()).sum())
        best = row[:-1].max()
        y = row[:-1].argmax()
        pseudo.append(best * -(p[y].log() + q[y].log()) if best > 0.9 else torch.zeros(()))
    found = method.target_terms(logits, posterior[target.index], warm=False)
    expected = {"crs": 0.05 * sum(crs) / len(crs), "ent": 0.025 * sum(ent) / len(ent), "pseudo": sum(pseudo) / len(pseudo)}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-4)
    assert torch.equal(method.known(logits, target), posterior[target.index, -1] < 0.5)
    assert method.target_terms(logits, posterior[target.index], warm=True).keys() == {"ent", "pseudo"}
    for sure, learnt in ((0.89, False), (0.91, True)):  # the border is hp.sure, 0.9
        row = torch.tensor([sure, *[(1 - sure) / K] * K]).expand(len(target.x), -1)
        assert (method.target_terms(logits, row, warm=False)["pseudo"].item() > 0) == learnt


def test_the_prediction_is_the_posteriors_also_one_by_one_and_after_loading():
    method = credo(noisy()).eval()
    out, posterior = method.predict(TARGET), method.target.model.posterior
    assert np.allclose(out.score, posterior[:, -1], atol=1e-5) and torch.equal(out.unknown, out.score > method.threshold)
    heads = torch.stack([head.softmax(1) for head in method.heads(method.backbone(TARGET))]).mean(0).detach().numpy()
    sure = posterior[:, -1] < 0.99
    own = posterior[:, :-1] / posterior[:, :-1].sum(1, keepdims=True)
    assert np.allclose(out.probs[sure], (own + heads)[sure] / 2, atol=1e-4)
    label = np.where(out.unknown, K, out.probs.argmax(1))
    assert (label == np.minimum(TARGET_TRUE, K)).mean() > 0.9
    loaded = Credo(FeatureBottleneck(DIM, 12), SPLIT).eval()
    load_method(loaded, method.state_dict(), "a folder")
    one_by_one = torch.cat([loaded.predict(row).score for row in TARGET.split(1)])
    assert loaded.threshold == 0.5 and torch.allclose(one_by_one, out.score, atol=1e-5)


def test_where_g_trains_the_target_is_estimated_anew_before_a_domain_is_predicted():
    method = credo(noisy(), frozen=False)
    first, game = method.target.model, method._posterior
    method.refresh()
    assert method.target.model is not first and method._posterior is game  # training does not depend on evaluations
    frozen = credo(noisy())
    first = frozen.target.model
    frozen.refresh()
    assert frozen.target.model is first


def test_a_model_of_release_02_predicts_by_the_papers_border():
    method = credo(noisy()).eval()
    state = {name: value for name, value in method.state_dict().items() if "extra_state" not in name}
    old = Credo(FeatureBottleneck(DIM, 12), SPLIT).eval()
    load_method(old, state, "a folder")
    logits = method.heads(method.backbone(TARGET))
    assert old.threshold == old.delta and torch.equal(old.predict(TARGET).score, divergences(logits)[1])


def test_prepared_again_it_has_the_same_estimates():
    """A resumed run is prepared anew with the untrained network."""
    method, again = credo(noisy()), credo(noisy())
    assert torch.equal(again.labels, method.labels) and torch.equal(again.weights, method.weights)
    assert torch.equal(again._posterior, method._posterior) and again.selection.drop_rate == method.selection.drop_rate
    plain = Credo(FeatureBottleneck(DIM, 12), SPLIT)
    load_method(plain, method.state_dict(), "a folder")
    plain.eval(), method.eval()
    assert torch.equal(plain.predict(FEATURES).probs, method.predict(FEATURES).probs)


def test_the_papers_method_with_delta_auto_has_the_estimated_share_and_saves_its_border():
    torch.manual_seed(0)
    method = credo(TRUE, Divergence, DivergenceHparams(delta="auto"))
    method.context = credo(TRUE).context
    method.context.target_features = lambda: method.backbone(TARGET)
    assert method.unknown_share == pytest.approx(0.4, abs=0.1)
    start = method.delta
    method.train()
    play = SGDPlayers(method.players(), total_steps=100)
    for step in range(10, 14):
        play.begin(step)
        method.update(*batches(TRUE, step), step, play)
    moved = method.delta
    assert moved != start
    method.eval()
    method.refresh()
    out = method.predict(TARGET)
    assert out.unknown.float().mean().item() == pytest.approx(method.unknown_share, abs=0.01)
    assert method.delta == moved  # an evaluation does not change training
    other = Divergence(FeatureBottleneck(DIM, 12), SPLIT, DivergenceHparams(delta="auto")).eval()
    load_method(other, method.state_dict(), "a folder")
    assert other.threshold == method.threshold and torch.equal(other.predict(FEATURES).unknown, method.predict(FEATURES).unknown)


def test_with_delta_auto_the_clamp_of_credo_follows_the_batches():
    method = credo(noisy(), hparams=CredoHparams(delta="auto"))
    start = method.delta
    method.train()
    play = SGDPlayers(method.players(), total_steps=100)
    play.begin(50)
    method.update(*batches(noisy()), 50, play)
    assert method.minimax.delta == method.delta != start


def test_the_default_has_no_border_in_its_state():
    method = Divergence(FeatureBottleneck(DIM, 12), SPLIT)
    assert "border" not in method.state_dict() and method.threshold == method.delta == pytest.approx(np.log(5))
    with pytest.raises(UserError, match="auto"):
        DivergenceHparams(delta="automatic")


def test_the_error_of_the_share_includes_what_training_changed():
    posterior = credo(noisy(), frozen=False).target
    first = posterior.model
    again = posterior._with_change(replace(first, share=first.share - 0.3, share_interval=(0.1, 0.2), warnings=[]))
    assert again.share_interval == (0.1, first.share) and not again.share_known
    assert "the true share lies between" in again.warnings[0]
    same = posterior._with_change(first)
    assert same.share_interval == first.share_interval and same.warnings == first.warnings
