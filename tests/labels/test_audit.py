"""Which source labels look wrong: the score, the files, and what it reaches on real features."""

import csv
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SHARED
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from tllib_ext.errors import UserError
from tllib_ext.evaluation.suspects_file import read_suspects, write_suspects
from tllib_ext.labels.audit import audit_labels, audit_quality, detection_quality, suspicion
from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets.noises import read_transition

NASTY = ("=cmd|' /C calc'!A0", "<script>alert(1)</script>", 'a,b"c', "'quoted'", "two\nlines")
SPLIT = LabelSplit(NASTY[:3], NASTY[3:])


def write(file, paths, given, history, split, clean=None, model=None, fallback=None):
    """Audit the labels and write the file; how well wrong labels were found, where they are known."""
    audit = audit_labels(history, np.asarray(given), None if model is None else model.responsibilities, fallback)
    write_suspects(file, paths, given, audit, split, clean)
    return {} if clean is None else audit_quality(audit, np.asarray(given), np.asarray(clean))


def make_audit(loss, probs, visits=None):
    visits = np.ones(len(loss)) if visits is None else np.asarray(visits, dtype=float)
    return SimpleNamespace(loss=np.asarray(loss, dtype=float), probs=np.asarray(probs, dtype=float), visits=visits)


def random_case(n=60, k=5, seed=0):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(k, 0.3), n)
    labels, clean = rng.integers(0, k, n), rng.integers(0, k, n)
    loss = -2 * np.log(probs[np.arange(n), labels] + 1e-9)
    return probs, labels, clean, loss, [f"images/{i}.png" for i in range(n)]


def test_suspicion_longhand():
    probs = np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    posterior = np.array([[0.6, 0.3, 0.1], [0.0, 0.1, 0.9]])
    loss, labels = np.array([0.5, 4.0]), np.array([0, 1])
    alone = suspicion(loss, probs, labels)
    assert alone == pytest.approx([0.2 - math.exp(-0.5), 0.7 - math.exp(-4.0)])
    both = suspicion(loss, probs, labels, posterior)
    assert both == pytest.approx([(alone[0] + 0.3 - 0.6) / 2, (alone[1] + 0.9 - 0.1) / 2])


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_suspicion_is_bounded_and_ignores_order(seed):
    probs, labels, _, loss, _ = random_case(seed=seed)
    score = suspicion(loss, probs, labels, probs[::-1])
    assert (np.abs(score) < 1).all()
    order = np.random.default_rng(seed).permutation(len(labels))
    assert np.array_equal(suspicion(loss[order], probs[order], labels[order], probs[::-1][order]), score[order])


def test_more_loss_is_more_suspicious():
    probs, labels, _, loss, _ = random_case()
    assert (suspicion(loss + 0.1, probs, labels) > suspicion(loss, probs, labels)).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_detection_quality_longhand(rows):
    score, wrong = np.array([s for s, _ in rows], dtype=float), np.array([w for _, w in rows])
    quality = detection_quality(score, wrong)
    if wrong.all() or not wrong.any():
        assert quality == {"suspects_auroc": None, "suspects_precision": None}
        return
    pairs = [(a > b) + 0.5 * (a == b) for a in score[wrong] for b in score[~wrong]]
    assert quality["suspects_auroc"] == pytest.approx(np.mean(pairs), abs=1e-9)
    first = sorted(range(len(score)), key=lambda i: (-score[i], i))[: wrong.sum()]
    assert quality["suspects_precision"] == pytest.approx(np.mean([wrong[i] for i in first]))


def test_a_sample_never_drawn_is_judged_by_the_trained_method():
    audit = make_audit([np.nan, 1.0], [[np.nan, np.nan], [0.4, 0.6]], visits=[0, 3])
    told = audit_labels(audit, np.array([0, 1]), None, [[0.1, 0.9], [0.5, 0.5]])
    assert told.loss == pytest.approx([-math.log(0.1), 1.0])
    assert told.probs == pytest.approx(np.array([[0.1, 0.9], [0.4, 0.6]]))
    untold = audit_labels(audit, np.array([0, 1]))
    assert untold.probs[0] == pytest.approx([0.5, 0.5]) and untold.visits.tolist() == [0, 3]
    diverged = make_audit([np.nan, np.inf], [[np.nan, np.nan], [0.4, 0.6]], visits=[2, 3])
    assert np.isfinite(audit_labels(diverged, np.array([0, 1]), None, [[np.nan] * 2] * 2).suspicion).all()
    nothing = make_audit([np.nan] * 2, np.full((2, 2), np.nan), visits=[0, 0])
    assert np.isfinite(audit_labels(nothing, np.array([0, 1])).suspicion).all()


def test_file_round_trip_with_any_names(tmp_path):
    probs, labels, clean, loss, paths = random_case()
    paths[:5] = NASTY
    results = write(tmp_path / "suspects.csv", paths, labels, make_audit(loss, probs), SPLIT, clean)
    back = read_suspects(tmp_path / "suspects.csv", SPLIT)
    order = np.argsort(-suspicion(loss, probs, labels), kind="stable")
    assert np.array_equal(back.index, order) and (np.diff(back.suspicion) <= 0).all()
    assert back.suspicion == pytest.approx(suspicion(loss, probs, labels)[order], abs=1e-12)
    assert list(back.path) == [paths[i] for i in order]
    assert np.array_equal(back.given, labels[order]) and np.array_equal(back.clean, clean[order])
    assert np.array_equal(back.suggested, probs.argmax(1)[order])
    assert results["suspects_auroc"] == pytest.approx(roc_auc_score(back.is_wrong, back.suspicion), abs=1e-9)
    with open(tmp_path / "suspects.csv", newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell[:1] in "=+@" and cell]  # no spreadsheet runs a name


def test_without_truth_nothing_is_claimed(tmp_path):
    probs, labels, _, loss, paths = random_case()
    assert write(tmp_path / "suspects.csv", paths, labels, make_audit(loss, probs), SPLIT) == {}
    back = read_suspects(tmp_path / "suspects.csv", SPLIT)
    assert back.clean is None and back.is_wrong is None
    assert "clean" not in (tmp_path / "suspects.csv").read_text(encoding="utf-8").splitlines()[0]


def test_cleanlab_form(tmp_path):
    probs, labels, clean, loss, paths = random_case()
    model = SimpleNamespace(responsibilities=np.roll(probs, 1, 0).astype(np.float32))
    write(tmp_path / "suspects.csv", paths, labels, make_audit(loss, probs), SPLIT, clean, model)
    pred_probs, given_labels = np.load(tmp_path / "pred_probs.npy"), np.load(tmp_path / "labels.npy")
    assert pred_probs.shape == (60, 5) and np.array_equal(given_labels, labels) and given_labels.dtype.kind == "i"
    assert pred_probs.sum(1) == pytest.approx(np.ones(60), abs=1e-5) and (pred_probs >= 0).all()
    assert pred_probs == pytest.approx((probs + np.roll(probs, 1, 0)) / 2, abs=1e-6)


def test_a_label_model_that_believes_everything_changes_nothing(tmp_path):
    probs, labels, clean, loss, paths = random_case()
    trusting = SimpleNamespace(responsibilities=np.eye(5)[labels])
    files = []
    for name, model in (("a", None), ("b", trusting)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "suspects.csv", paths, labels, make_audit(loss, probs), SPLIT, clean, model)
        files.append((tmp_path / name / "suspects.csv").read_bytes())
    assert files[0] == files[1]


def test_bad_input_is_one_clear_error(tmp_path):
    probs, labels, clean, loss, paths = random_case()
    audit = make_audit(loss, probs)
    with pytest.raises(UserError, match="expected 0..4"):
        write(tmp_path / "s.csv", paths, labels + 1, audit, SPLIT)
    with pytest.raises(UserError, match="as many of each"):
        write(tmp_path / "s.csv", paths[:-1], labels, audit, SPLIT)
    assert not list(tmp_path.iterdir())
    write(tmp_path / "s.csv", paths, labels, audit, SPLIT)
    with pytest.raises(UserError, match="another split"):
        read_suspects(tmp_path / "s.csv", LabelSplit(["x", "y"]))


def test_a_run_writes_them(run_example, feature_root, tmp_path):
    words = [feature_root, "-s", "alpha", "-t", "beta", "--split", "2/2/2", "--noise", "pair", "--steps", 3, "-b", 8]
    code, _, err = run_example("noisy_unida", *words, "--no-report", "--log", "run")
    assert code == 0, err
    back = read_suspects("run/suspects.csv", LabelSplit(["ant", "bee"], ["cat", "dog"]))
    assert len(back.index) == 48 and set(back.index) == set(range(48))
    assert (back.visits == 0).any()  # three steps do not reach everybody, and nobody is missing
    assert not (tmp_path / "run/report.html").exists() and not (tmp_path / "run/tsne.csv").exists()
    model = json.loads((tmp_path / "run/label_model.json").read_text())
    # The matrix can be read by a person, and by --noise.
    assert (tmp_path / "run/transition.csv").read_text().startswith("true class / label,ant,bee,cat,dog")
    assert np.allclose(read_transition("run/transition.csv", 4), model["transition"], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "auroc", "precision"),
    [("pair", 0.2, 0.976, 0.855), ("symmetric", 0.45, 0.987, 0.935), ("pair", 0.45, 0.69, 0.64)],
)
def test_office31_features(run_example, tmp_path, noise, rate, auroc, precision):
    root = SHARED / "data/office31_resnet50"
    if not root.is_dir():
        pytest.skip(f"no features in {root}")
    import json

    words = [root, "-d", "features", "-s", "amazon", "-t", "dslr", "--noise", noise, "--rate", rate, "--steps", 1000]
    code, _, err = run_example("noisy_unida", *words, "--no-report", "--log", "run")
    assert code == 0, err
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["suspects_auroc"] >= auroc and results["suspects_precision"] >= precision
