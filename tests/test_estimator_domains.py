"""The estimator with both domains in one array: pipelines, searches, metadata routing, skada, features of different scale."""

import inspect
import re
import warnings

import numpy as np
import pytest
import sklearn
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_estimator import blobs, small

from tllib_ext import NoisyUniDA
from tllib_ext.errors import UserError

DOMAIN = np.r_[np.full(240, 1), np.full(150, -2)]


def merged(names=(0, 1, 2, 3), masked=-1):
    """X, y with masked target labels, sample_domain; rows of both domains in mixed order."""
    Xs, _, ys, Xt, target = blobs(names)
    order = np.random.default_rng(1).permutation(390)
    y = [*ys, *[masked] * 150]
    return np.r_[Xs, Xt][order], [y[i] for i in order], DOMAIN[order], np.r_[np.full(240, -9), target][order]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# --- sample_domain ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [-1, None, np.nan, "anything", 3])
def test_both_forms_are_one_fit_whatever_the_target_labels_are(masked):
    X, y, domain, _ = merged(masked=masked)
    y = np.array(y, dtype=object if masked is None or isinstance(masked, str) else None)
    model = small().fit(X, y, sample_domain=domain)
    source = domain > 0
    twin = small().fit(X[source], y[source], X[~source])
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert (model.score_samples(X) == twin.score_samples(X)).all() and (model.predict(X) == twin.predict(X)).all()
    assert (model.label_issues_["index"] == np.flatnonzero(source)[twin.label_issues_["index"]]).all()  # rows of X
    assert (model.fit_predict(X, y, sample_domain=domain) == twin.predict(X)).all()


def test_labels_of_any_kind_beside_masks():
    X, y, domain, _ = merged(["cat", "ant", "dog", "eel"])  # a list of strings and of the number -1
    model = small().fit(X, y, sample_domain=domain)
    assert sorted(model.classes_.tolist()) == ["ant", "cat", "dog", "eel"]


def test_sources_alone_have_no_unknown_and_one_number_is_enough():
    Xs, _, ys, *_ = blobs()
    assert small().fit(Xs, ys, sample_domain=1).threshold_ == small().fit(Xs, ys).threshold_ == np.inf


@pytest.mark.parametrize(
    "domain, message",
    [
        (np.ones(7), "sample_domain has the shape \\(7,\\), X has 240 rows"),
        (-1, "negative numbers only"),
        (np.r_[1, np.full(239, -1)], "marks 1 source row"),
        (np.r_[-1, np.full(239, 1)], "marks 1 target row"),
        (np.full(240, np.nan), "sample_domain contains NaN"),
        (["a"] * 240, "could not convert"),
    ],
)
def test_errors_of_sample_domain(domain, message):
    Xs, _, ys, *_ = blobs()
    with pytest.raises(ValueError, match=message):
        small().fit(Xs, ys, sample_domain=domain)


def test_either_xt_or_sample_domain():
    Xs, _, ys, Xt, _ = blobs()
    with pytest.raises(UserError, match="Xt and sample_domain: expected one of them"):
        small().fit(Xs, ys, Xt, sample_domain=1)


# --- pipelines and searches -------------------------------------------------------------------------------------------


def unknown_recall(model, X, true):
    return (model.predict(X[true == 4]) == -1).mean()


def test_a_pipeline_transforms_both_domains():
    X, y, domain, true = merged()
    X = X * [1, 10, 100, 1, 10, 100] + 50
    pipeline = make_pipeline(StandardScaler(), PCA(5), NoisyUniDA("mixture")).fit(X, y, noisyunida__sample_domain=domain)
    assert unknown_recall(pipeline, X, true) > 0.8 and (pipeline.predict(X) == true)[(true >= 0) & (true < 4)].mean() > 0.8


def test_arguments_have_the_names_that_routing_needs():
    assert list(inspect.signature(NoisyUniDA.fit).parameters) == ["self", "X", "y", "Xt", "sample_domain"]
    assert NoisyUniDA().get_metadata_routing().fit.requests["sample_domain"] is True


def test_routing_through_a_pipeline_and_cross_validation(routing):
    X, y, domain, true = merged()
    plain = make_pipeline(StandardScaler(), NoisyUniDA("mixture"))
    fitted = plain.fit(X, y, sample_domain=domain)
    assert unknown_recall(fitted, X, true) > 0.8
    y = np.where(np.array(y) == -1, true, y)  # with labels of the target, which only the score uses
    scores = cross_val_score(plain, X, y, cv=3, params={"sample_domain": domain}, error_score="raise")
    assert (scores > 0.7).all()


def test_routing_transforms_xt_where_it_is_asked_to(routing):
    Xs, _, ys, Xt, target = blobs()
    model = NoisyUniDA("mixture").set_fit_request(Xt=True)
    pipeline = make_pipeline(StandardScaler(), model, transform_input=["Xt"]).fit(10 * Xs, ys, Xt=10 * Xt)
    assert unknown_recall(pipeline, 10 * Xt, target) > 0.8


def test_grid_search_with_scaler_and_pca():
    X, y, domain, true = merged()
    y = np.where(np.array(y) == -1, true, y)
    pipeline = make_pipeline(StandardScaler(), PCA(5), NoisyUniDA("mixture"))
    search = GridSearchCV(pipeline, {"pca__n_components": [1, 5]}, cv=2, error_score="raise")
    assert search.fit(X, y, noisyunida__sample_domain=domain).best_params_ == {"pca__n_components": 5}


@pytest.mark.slow
def test_skada_splits_and_scores():
    skada = pytest.importorskip("skada")
    from skada.metrics import PredictionEntropyScorer, SupervisedScorer
    from skada.model_selection import SourceTargetShuffleSplit, StratifiedDomainShuffleSplit
    from sklearn.model_selection import cross_validate

    X, y, domain, true = merged()
    y, labels = np.array(y), np.where(true == 4, -1, true)
    with sklearn.config_context(enable_metadata_routing=True):
        for pipeline in (
            skada.make_da_pipeline(StandardScaler(), PCA(5), NoisyUniDA("mixture")),
            skada.make_da_pipeline(NoisyUniDA("mixture")),
        ):
            assert (pipeline.fit(X, y, sample_domain=domain).predict(X[domain < 0]) == labels[domain < 0]).mean() > 0.8
            for splitter in (SourceTargetShuffleSplit(2, random_state=0), StratifiedDomainShuffleSplit(2, random_state=0)):
                for scorer, params in ((PredictionEntropyScorer(), {}), (SupervisedScorer(), {"target_labels": labels})):
                    params = {"sample_domain": domain, **params}
                    result = cross_validate(pipeline, X, y, params=params, cv=splitter, scoring=scorer, error_score="raise")
                    assert np.isfinite(result["test_score"]).all()
                    if isinstance(scorer, SupervisedScorer):
                        assert result["test_score"].mean() > 0.7


# --- features of different scale --------------------------------------------------------------------------------------


def test_a_pipeline_that_leaves_the_target_unscaled_is_named():
    Xs, _, ys, Xt, _ = blobs()
    with pytest.warns(UserWarning, match="X is standardised and Xt is not.*sample_domain"):
        make_pipeline(StandardScaler(), small()).fit(20 * Xs + 5, ys, noisyunida__Xt=20 * Xt + 5)
    with pytest.raises(UserError, match="Xt has 6 columns, X has 3.*a pipeline transforms X only"):
        make_pipeline(PCA(3), small()).fit(Xs, ys, noisyunida__Xt=Xt)


@pytest.mark.parametrize(
    "factor, shift, warned", [(1, 0, False), (2, 0.5, False), (100, 0, True), (0.01, 0, True), (1, 30, True)]
)
def test_features_of_different_scale_are_a_warning(factor, shift, warned):
    Xs, _, ys, Xt, _ = blobs()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small().fit(Xs, ys, factor * Xt + shift)
    assert any("different scale" in str(w.message) for w in caught) == warned


def test_constant_columns_have_no_scale():
    Xs, _, ys, Xt, _ = blobs()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(scale|divide|invalid)")
        small().fit(np.c_[Xs, np.zeros(240)], ys, np.c_[Xt, np.ones(150)])


# --- the label of unknown, devices, words -----------------------------------------------------------------------------


def test_unknown_has_the_label_that_the_caller_chose():
    names = ["cat", "ant", "dog", "eel"]
    Xs, _, ys, Xt, target = blobs(names)
    model = NoisyUniDA("mixture", unknown_label="unknown").fit(Xs, ys, Xt)
    predicted, true = model.predict(Xt), [[*names, "unknown"][k] for k in target]
    assert predicted.dtype.kind == "U" and set(predicted) == {*names, "unknown"}
    assert classification_report(true, predicted, output_dict=True)["unknown"]["recall"] > 0.7
    assert model.score(Xt, true) == model.score(Xt, ["foreign" if y == "unknown" else y for y in true]) > 0.8
    Xs, _, ys, Xt, _ = blobs([-1, 0, 1, 2])  # a class may be called -1 then
    assert set(NoisyUniDA("mixture", unknown_label=9).fit(Xs, ys, Xt).predict(Xt)) == {-1, 0, 1, 2, 9}


@pytest.mark.parametrize("label", [None, (1, 2), True, ["unknown"]])
def test_labels_of_unknown_that_cannot_be(label):
    Xs, _, ys, *_ = blobs()
    with pytest.raises(UserError, match="unknown_label=.*expected a number or a string"):
        small(unknown_label=label).fit(Xs, ys)
    with pytest.raises(UserError, match="y holds the label 2.*unknown_label="):
        small(unknown_label=2).fit(Xs, ys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_one_line():
    Xs, _, ys, *_ = blobs()
    with pytest.raises(UserError) as caught:
        small(device="cuda").fit(Xs, ys)
    assert re.fullmatch(r"device='cuda' cannot be used here: .*; try device='cpu'", str(caught.value))


def test_warnings_speak_of_arrays():
    from tllib_ext.target.diagnosis import warnings_of

    texts = [text for number in (20, 100) for share in (0.0, 0.5, 0.99) for known in (False, True)
             for text in warnings_of(share, (0.0, 0.7), known, 0.1, number)]  # fmt: skip
    assert len(set(texts)) >= 6 and not re.search("gallery|backbone|image", " ".join(texts))
