"""NoisyUniDA.ask and .answer: indices of the target, corrected predictions, other instances untouched, errors."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from tllib_ext import NoisyUniDA
from tllib_ext.errors import UserError

NAMES = np.array(["ant", "bee", "cat", "dog"])


def domains(seed=0, names=None):
    """Source of four classes; a target of the first three and two unknown groups, so far away that cosines mislead."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.standard_normal((6, 20))
    turn = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    ys, yt = np.repeat(np.arange(4), 40), np.repeat([0, 1, 2, 4, 5], 30)
    xs = centres[ys] + rng.standard_normal((160, 20))
    xt = 0.4 * (centres[yt] @ turn) + 0.6 * centres[yt] + rng.standard_normal((150, 20))
    true = np.where(yt < 4, yt, -1)
    if names is None:
        return xs, ys, xt, true
    return xs, names[ys], xt, np.array([names[y] if y >= 0 else "none" for y in true])


@pytest.fixture(scope="module", params=["mixture", "source_only"])
def fitted(request):
    xs, ys, xt, true = domains()
    return NoisyUniDA(method=request.param, steps=30).fit(xs, ys, xt), xt, true


def test_answers_make_predictions_better_for_old_and_new_rows(fitted):
    model, xt, true = fitted
    before = model.predict(xt)
    rows = model.ask(20)
    assert rows.dtype == np.int64 and len(set(rows.tolist())) == 20 and rows.max() < len(xt)
    corrected = model.answer(rows, true[rows])
    others = np.setdiff1d(np.arange(len(xt)), rows)
    after = corrected.predict(xt)
    assert (after == true)[others].mean() > max(0.9, (before == true)[others].mean() - 0.02)
    assert (after[rows] == true[rows]).mean() > 0.9
    new = xt + 0.05 * np.random.default_rng(1).standard_normal(xt.shape)
    assert (corrected.predict(new) == true).mean() > 0.9
    assert corrected.threshold_ == 0.5 and ((corrected.score_samples(xt) > 0.5) == (after == -1)).all()
    assert corrected.predict_proba(xt).sum(1) == pytest.approx(1)
    assert (model.predict(xt) == before).all() and not model.answers_  # the first estimator stays as it is


def test_a_row_does_not_depend_on_the_other_rows(fitted):
    model, xt, true = fitted
    rows = model.ask(5)
    corrected = model.answer(rows, true[rows])
    together = corrected.score_samples(xt[:12])
    assert np.concatenate([corrected.score_samples(row[None]) for row in xt[:12]]) == pytest.approx(together, abs=1e-5)


def test_asking_goes_on_and_answers_add_up(fitted):
    model, xt, true = fitted
    first = model.ask(6)
    second = model.answer(first, true[first])
    more = second.ask(6)
    assert not set(first) & set(more)
    both, at_once = second.answer(more, true[more]), model.answer(np.r_[more, first], true[np.r_[more, first]])
    assert both.answers_ == at_once.answers_ and len(both.answers_) == 12
    assert both.score_samples(xt) == pytest.approx(at_once.score_samples(xt), abs=1e-9)


def test_a_doubtful_answer_is_named_and_the_same_answer_again_confirms_it(fitted):
    model, xt, true = fitted
    rows = np.arange(0, 150, 6)
    labels = true[rows].copy()
    labels[2] = 1
    found = model.answer(rows, labels)
    assert rows[2] in found.doubtful_answers_
    left_out = model.answer(rows, labels, trust=False)
    assert left_out.predict(xt[rows[2:3]]) == 0
    assert rows[2] not in left_out.answer(rows[2:3], labels[2:3]).doubtful_answers_
    assert rows[2] not in left_out.answer(rows[2:3], [0]).doubtful_answers_  # or it is corrected


def test_pickle_and_clone(fitted):
    model, xt, true = fitted
    rows = model.ask(8)
    corrected = model.answer(rows, true[rows])
    again = pickle.loads(pickle.dumps(corrected))
    assert again.score_samples(xt) == pytest.approx(corrected.score_samples(xt), abs=1e-6)
    assert again.answers_ == corrected.answers_ and set(again.ask(3)) == set(corrected.ask(3))
    assert not hasattr(clone(corrected), "answers_")
    assert not corrected.fit(*domains()[:3]).answers_


def test_names_and_another_label_of_unknown():
    xs, ys, xt, true = domains(names=NAMES)
    model = NoisyUniDA(method="mixture", unknown_label="none").fit(xs, ys, xt)
    rows = model.ask(10)
    corrected = model.answer(rows, true[rows])
    assert (corrected.predict(xt) == true).mean() > 0.9
    assert corrected.answers_ == dict(zip(rows.tolist(), true[rows].tolist()))
    with pytest.raises(UserError, match="'dgo' of row 3: expected one of classes_, or unknown_label"):
        model.answer([3], ["dgo"])


def test_rows_of_the_target_where_both_domains_are_in_one_array():
    xs, ys, xt, true = domains()
    domain = np.r_[np.ones(len(xs)), -np.ones(len(xt))]
    one = NoisyUniDA(method="mixture").fit(np.r_[xs, xt], np.r_[ys, np.zeros(len(xt), int)], sample_domain=domain)
    two = NoisyUniDA(method="mixture").fit(xs, ys, xt)
    assert (one.ask(7) == two.ask(7)).all()


@pytest.mark.parametrize(
    "index, labels, words",
    [
        ([0, 1], [0], "1 labels for an index of shape"),
        ([150], [0], "expected 0 to 149"),
        ([-1], [0], "expected 0 to 149"),
        ([0.5], [0], "one row number"),
        ([0], [9], "label 9 of row 0"),
        ([3, 3], [0, 1], "row 3 has the labels 0 and 1"),
    ],
)
def test_bad_answers_are_explained(fitted, index, labels, words):
    with pytest.raises(UserError, match=words):
        fitted[0].answer(index, labels)


def test_asking_without_a_target_or_for_nothing():
    xs, ys, xt, _ = domains()
    with pytest.raises(UserError, match="no target to ask about"):
        NoisyUniDA(method="mixture").fit(xs, ys).ask(3)
    model = NoisyUniDA(method="mixture").fit(xs, ys, xt)
    with pytest.raises(UserError, match="at least 1"):
        model.ask(0)
    assert len(model.ask(1000)) == 150
