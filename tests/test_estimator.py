"""The estimator on arrays: what it finds, scikit-learn's checks, and the same numbers as a run from files."""

import csv
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from conftest import ROOT
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tllib_ext.errors import UserError
from tllib_ext.estimator import NoisyUniDA
from tllib_ext.methods import METHODS

#: scikit-learn's checks that cannot pass, and why; docs/estimator.md has the same list.
SKIPPED = {
    "check_classifiers_classes": "it labels a class -1, which is the label of unknown here unless unknown_label says another"
}


def blobs(names=(0, 1, 2, 3)):
    """Four classes with a quarter of the labels wrong; a shifted target with a fifth class."""
    rng, centres = np.random.default_rng(0), 4 * np.eye(6)
    true, target = np.arange(240) % 4, np.arange(150) % 5
    given = np.where(rng.random(240) < 0.25, (true + 1) % 4, true)
    Xs, Xt = centres[true] + rng.normal(size=(240, 6)), centres[target] + 0.5 + rng.normal(size=(150, 6))
    return Xs, [names[k] for k in true], [names[k] for k in given], Xt, target


@pytest.fixture(scope="module")
def fitted():
    Xs, _, ys, Xt, _ = blobs()
    return NoisyUniDA(steps=60, bottleneck_dim=64).fit(Xs, ys, Xt)


FEW = {"steps": 20, "bottleneck_dim": 64}


@pytest.fixture(scope="module")
def few_steps():
    Xs, _, ys, Xt, _ = blobs()
    return NoisyUniDA(**FEW).fit(Xs, ys, Xt)


def small(**settings):
    return NoisyUniDA(**{"steps": 3, "bottleneck_dim": 8, **settings})


# --- what it finds ----------------------------------------------------------------------------------------------------


def test_finds_classes_and_unknown(fitted):
    *_, Xt, target = blobs()
    predicted = fitted.predict(Xt)
    assert (predicted == target)[target < 4].mean() > 0.8  # chance: 0.25
    assert (predicted == -1)[target == 4].mean() > 0.7
    assert fitted.score(Xt, target) == np.mean(predicted == np.where(target == 4, -1, target)) > 0.8


def test_fits_in_threads_are_equal_and_leave_the_generator():
    from concurrent.futures import ThreadPoolExecutor

    Xs, _, ys, Xt, _ = blobs()
    one = NoisyUniDA(**FEW).fit(Xs, ys, Xt).score_samples(Xt)
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(lambda _: NoisyUniDA(**FEW).fit(Xs, ys, Xt).score_samples(Xt), range(8)))
    assert all(np.array_equal(one, score) for score in scores)
    assert torch.equal(before, torch.get_rng_state())


def test_finds_wrong_labels_and_their_rate(fitted):
    _, true, given, *_ = blobs()
    wrong, issues = np.array(true) != given, fitted.label_issues_
    assert set(issues["index"]) == set(np.flatnonzero(wrong))
    assert (issues["given"] == np.array(given)[issues["index"]]).all()
    assert (issues["suggested"] == np.array(true)[issues["index"]]).all()
    assert (np.diff(issues["suspicion"]) <= 0).all() and issues["suspicion"][-1] > 0
    assert abs(fitted.noise_rate_ - wrong.mean()) < 0.02 and 0 <= fitted.noise_rate_std_ < 0.1
    cycle = [fitted.transition_[k, (k + 1) % 4] for k in range(4)]
    assert np.allclose(fitted.transition_.sum(1), 1) and abs(np.mean(cycle) - wrong.mean()) < 0.05


def test_probabilities_scores_and_threshold(fitted):
    *_, Xt, target = blobs()
    probs, score, predicted = fitted.predict_proba(Xt), fitted.score_samples(Xt), fitted.predict(Xt)
    assert probs.shape == (150, 4) and np.allclose(probs.sum(1), 1, atol=1e-6)
    assert ((score > fitted.threshold_) == (predicted == -1)).all()
    assert score[target == 4].mean() > score[target < 4].mean()  # high = unknown
    known = predicted != -1
    assert (fitted.classes_[probs.argmax(1)] == predicted)[known].all()
    assert fitted.n_features_in_ == 6 and fitted.classes_.tolist() == [0, 1, 2, 3]


def test_without_target_nothing_is_unknown():
    Xs, true, given, Xt, _ = blobs()
    model = NoisyUniDA(steps=30, bottleneck_dim=64).fit(Xs, given)
    assert set(model.predict(Xt)) <= {0, 1, 2, 3} and model.threshold_ == np.inf
    assert model.score(Xs, true) > 0.95  # better than its labels
    assert (small().fit_predict(Xs, given) == small().fit(Xs, given).predict(Xs)).all()


def test_a_run_from_files_gives_the_same_predictions(run_example, tmp_path):
    Xs, _, ys, Xt, _ = blobs()
    names = np.array(["a", "b", "c", "d"])
    for name, X, y in (("s", Xs, ys), ("t", Xt, np.arange(150) % 4)):
        np.savez(tmp_path / f"{name}.npz", features=X.astype(np.float32), labels=np.array(y), classes=names)
    flags = "-d features -s s -t t --split 4/0/0 -m credo --steps 12 --device cpu --no-report --log run".split()
    code, _, err = run_example("noisy_unida", tmp_path, *flags)
    assert code == 0, err
    rows = list(csv.DictReader(open(tmp_path / "run" / "predictions.csv")))
    model = NoisyUniDA(steps=12).fit(Xs, names[ys], Xt)
    assert [row["predicted"] for row in rows] == ["unknown" if p == -1 else p for p in model.predict(Xt)]
    assert np.allclose([float(row["score"]) for row in rows], model.score_samples(Xt), atol=1e-5)


@pytest.mark.slow
def test_the_page_shows_what_its_example_prints(capsys):
    page = (ROOT / "docs" / "estimator.md").read_text(encoding="utf-8")
    exec(compile(re.search(r"```python\n(.*?)```", page, re.S)[1], "estimator.md", "exec"), {})
    shown, printed = re.search(r"```text\n(.*?)```", page, re.S)[1], capsys.readouterr().out
    number = re.compile(r"\d+\.\d+")
    assert number.sub("", printed) == number.sub("", shown)
    assert np.allclose(*([float(n) for n in number.findall(text)] for text in (printed, shown)), atol=0.03)


def test_the_page_names_the_skipped_checks():
    page = (ROOT / "docs" / "estimator.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(check_\w+)` \|", page, re.M)) == set(SKIPPED)


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names, kind",
    [
        (["cat", "ant", "dog", "eel"], object),
        ([("a", 1), ("a", 2), ("b", 1), ("b", 2)], object),
        ([7, "seven", b"7", (7,)], object),
        ([10, 20, 30, 40], np.int64),
        ([1.0, 2.0, 3.0, 4.0], np.float64),
    ],
)
def test_labels_of_any_kind(names, kind, few_steps):
    Xs, _, ys, Xt, target = blobs(names)
    model = small(**FEW).fit(Xs, ys, Xt)
    predicted = model.predict(Xt)
    assert predicted.dtype == kind and set(predicted.tolist()) == {*names, -1}
    assert set(model.classes_.tolist()) == set(names)
    assert set(model.label_issues_["given"].tolist()) <= set(names)
    assert model.score(Xt, [names[k] if k < 4 else ("foreign", k) for k in target]) > 0.7
    if model.classes_.tolist() == names:  # the same class numbers inside: the same result
        assert [names.index(p) if p != -1 else -1 for p in predicted.tolist()] == few_steps.predict(Xt).tolist()


def test_unsigned_and_boolean_labels_hold_unknown():
    Xs, _, ys, Xt, _ = blobs()
    assert small().fit(Xs, np.array(ys, np.uint8), Xt).predict(Xt).dtype == np.int64
    assert small().fit(Xs, np.array(ys) > 1, Xt).predict(Xt).dtype == object


# --- scikit-learn -----------------------------------------------------------------------------------------------------


@parametrize_with_checks([small(steps=5, bottleneck_dim=16)], expected_failed_checks=lambda estimator: SKIPPED)
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_searches_parameters_without_a_target():
    Xs, true, given, *_ = blobs()
    search = GridSearchCV(make_pipeline(StandardScaler(), small(method="coteaching")), {"noisyunida__steps": [1, 60]}, cv=2)
    assert search.fit(Xs, given).best_params_ == {"noisyunida__steps": 60}
    assert search.score(Xs, true) > 0.8


def test_clone_and_parameters():
    model = NoisyUniDA("dance", 7, 3, hparams={"eta": 0.1}, noise_rate=0.2)
    twin = clone(model)
    assert twin is not model and twin.get_params() == model.get_params()
    assert twin.set_params(steps=9, seed=4).get_params()["steps"] == 9 and model.steps == 7


@pytest.mark.parametrize("name", [*METHODS, "tllib_ext.methods.dann:Dann"])
def test_every_method_fits_and_pickles(name):
    Xs, _, ys, Xt, _ = blobs()
    model = small(method=name, noise_rate=0.2).fit(Xs, ys, Xt)
    twin = pickle.loads(pickle.dumps(model))
    for result in ("predict", "predict_proba", "score_samples"):
        assert (getattr(twin, result)(Xt) == getattr(model, result)(Xt)).all()
    assert (twin.label_issues_ == model.label_issues_).all() and twin.threshold_ == model.threshold_


def test_a_pickle_holds_no_training_data():
    rng = np.random.default_rng(0)
    Xs, ys = rng.normal(size=(2000, 50)), np.arange(2000) % 3
    assert len(pickle.dumps(small().fit(Xs, ys))) < Xs.astype(np.float32).nbytes / 5


def test_deterministic_and_leaves_the_global_generator_alone():
    Xs, _, ys, Xt, _ = blobs()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (small(seed=seed).fit(Xs, ys, Xt).score_samples(Xt) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()
    assert (torch.get_rng_state() == state).all()


def test_inputs_of_other_kinds():
    Xs, _, ys, Xt, _ = blobs()
    expected = small().fit(Xs, ys, Xt).score_samples(Xt)
    assert (small().fit(Xs.astype(np.float32), tuple(ys), Xt.tolist()).score_samples(Xt) == expected).all()


def test_dataframes():
    pandas = pytest.importorskip("pandas")
    Xs, _, ys, Xt, _ = blobs(["a", "b", "c", "d"])
    frame = pandas.DataFrame(Xs, columns=list("uvwxyz"))
    model = small().fit(frame, pandas.Series(ys), pandas.DataFrame(Xt, columns=list("uvwxyz")))
    assert model.feature_names_in_.tolist() == list("uvwxyz")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pandas.DataFrame(Xt, columns=list("abcdef")))


def test_hyper_parameters_and_rate_reach_the_method():
    Xs, _, ys, Xt, _ = blobs()
    model = small(method="divergence", hparams={"delta": 1.25, "n": 1}).fit(Xs, ys, Xt)
    assert model.threshold_ == 1.25 and model.method_.hparams.n == 1
    scores = [small(method="divergence", steps=6, noise_rate=rate).fit(Xs, ys, Xt).score_samples(Xt) for rate in (None, 0.0, 0.5)]
    assert (scores[0] != scores[1]).any() and (scores[1] != scores[2]).any()


def test_small_domains_make_the_batch_smaller():
    Xs, _, ys, Xt, _ = blobs()
    assert small().fit(Xs[:9], ys[:9], Xt[:3]).predict(Xt).shape == (150,)


# --- errors -----------------------------------------------------------------------------------------------------------

X, Y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 3


@pytest.mark.parametrize(
    "settings, data, message",
    [
        ({}, (X, Y[:5], X), "X has 12 rows, y has 5 labels"),
        ({}, (X, Y, X[:, :2]), "Xt has 2 columns, X has 3"),
        ({}, (X, Y - 1, X), "y holds the label -1"),
        ({}, (X, ["a", -1] * 6, X), "y holds the label -1"),
        ({}, (X, Y * 0, X), "y holds 1 class"),
        ({}, (X, ["a", None] * 6, X), "y has no label in 6 rows, the first is row 1"),
        ({}, (X, Y, X * np.nan), "Input Xt contains NaN"),
        ({}, (np.full_like(X, np.inf), Y, X), "Input X contains infinity"),
        ({}, (X, Y * np.nan, X), "Input y contains NaN"),
        ({}, (X, Y, X[:1]), "minimum of 2"),
        ({"method": "cred"}, (X, Y, X), "did you mean 'credo'"),
        ({"hparams": {"etta": 1}}, (X, Y, X), "unknown hyper-parameter 'etta'"),
        ({"hparams": "eta=1"}, (X, Y, X), "hparams='eta=1': expected a dict"),
        ({"steps": 0}, (X, Y, X), "steps=0"),
        ({"seed": 0.5}, (X, Y, X), "seed=0.5"),
        ({"batch_size": 1}, (X, Y, X), "batch_size=1"),
        ({"noise_rate": 20}, (X, Y, X), "noise_rate=20"),
        ({"lr": 0}, (X, Y, X), "lr=0"),
    ],
)
def test_errors_name_the_argument(settings, data, message):
    with pytest.raises(ValueError, match=message):
        small(**settings).fit(*data)


def test_errors_after_fitting():
    with pytest.raises(NotFittedError):
        small().predict(X)
    model = small().fit(X, Y)
    with pytest.raises(ValueError, match="X has 2 features"):
        model.predict(X[:, :2])
    with pytest.raises(UserError, match="X has 12 rows, y has 3 labels"):
        model.score(X, Y[:3])


def test_a_share_of_wrong_labels_that_cannot_be_told_is_a_warning(fitted):
    low, high = fitted.noise_rate_interval_
    assert fitted.noise_rate_known_ and low <= fitted.noise_rate_ <= high < 0.5
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="how many are wrong cannot be told .*better features"):
        model = NoisyUniDA("mixture").fit(rng.normal(size=(60, 4)), np.arange(60) % 3, rng.normal(size=(60, 4)))
    assert not model.noise_rate_known_ and model.noise_rate_interval_[1] > 0.5


def test_a_target_that_is_called_unknown_as_a_whole_is_a_warning():
    Xs, _, given, *_ = blobs()
    with pytest.warns(UserWarning, match="nearly everything in the target .*mixture"):
        small(method="divergence", steps=1, hparams={"delta": 1e-9}).fit(Xs, given, Xs)


def test_the_warnings_of_the_target_model_reach_the_caller():
    Xs, _, given, *_ = blobs()
    noise = np.random.default_rng(0).standard_normal(Xs.shape)  # nothing of it is known, nothing forms a group
    with pytest.warns(UserWarning, match="docs/faq.md"):
        small(method="mixture").fit(Xs, given, noise)
