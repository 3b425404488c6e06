"""Every plot: what is drawn, and that no data can break it."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import gaussian_kde

from tllib_ext.evaluation.curves import threshold_curve
from tllib_ext.evaluation.feature_map_file import GROUPS, FeatureMap, read_feature_map, write_feature_map
from tllib_ext.report import plots
from tllib_ext.report.plots import Scores, confusion_matrix, transition_matrices
from tllib_ext.report.style import plain, save
from tllib_ext.split import LabelSplit
from tllib_ext.training.feature_map import choose, groups_of, tsne
from tllib_ext.training.tensorboard import add_evaluation

NAMES = ["mug", "$x^2$", "$broken", "two\nlines", "\udcff", "名前", "<b>" * 30, "unknown"]
RNG = np.random.default_rng(0)
SCORE = np.r_[RNG.normal(0, 1, 80), RNG.normal(4, 1, 60)]
UNKNOWN = np.r_[np.zeros(80, bool), np.ones(60, bool)]


def drawn(figure):
    """The figure as an image, through the file that a run writes."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return np.asarray(Image.open(stream).convert("L"))


def labels_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_density_is_scotts_kde_with_the_threshold():
    ax = plots.density([Scores("t", SCORE, UNKNOWN, 2.5)], "score").axes[0]
    lines = {line.get_label(): line.get_xydata() for line in ax.lines}
    for name, part in (("common classes (80)", SCORE[~UNKNOWN]), ("private classes (60)", SCORE[UNKNOWN])):
        x, y = lines[name].T
        assert y == pytest.approx(gaussian_kde(part, "scott")(x))
    assert set(lines["threshold 2.5"][:, 0]) == {2.5}
    two = plots.density([Scores("$a", SCORE), Scores("b", SCORE, UNKNOWN, float("nan"))], "score").axes
    assert labels_of(two[0]) == ["target images (140)"]
    assert labels_of(two[1]) == ["common classes (80)", "private classes (60)"]


@pytest.mark.parametrize(
    "score", [[1.0], [2.0, 2.0, 2.0], [np.inf, 1.0, -np.inf, 2.0, 3.0], [np.inf, np.inf], [0.0, 1e-300], [1e30, -1e30, 0.0]]
)
@pytest.mark.parametrize("labelled", [True, False])
def test_density_of_odd_scores(score, labelled):
    score = np.array(score)
    unknown = np.arange(len(score)) % 2 == 0 if labelled else None
    assert drawn(plots.density([Scores("t", score, unknown, None if labelled else 0.5)], "score")).min() < 200


def test_threshold_curve_draws_the_curve():
    split = LabelSplit(["a", "b"], [], ["c"])
    labels = np.where(UNKNOWN, 2, np.arange(140) % 2)
    curve = threshold_curve(labels, np.arange(140) % 2, SCORE, split)
    ax = plots.threshold_curve(curve, 1.0).axes[0]
    lines = {line.get_label(): line.get_xydata() for line in ax.lines}
    assert lines["OS"][:, 1] == pytest.approx(curve.os) and lines["H-score"][:, 1] == pytest.approx(curve.h_score)
    known = threshold_curve(labels[~UNKNOWN], labels[~UNKNOWN], SCORE[~UNKNOWN], split)
    assert "H-score" not in labels_of(plots.threshold_curve(known).axes[0])


def test_training_curves_show_what_was_recorded():
    records = [{"step": s, "train_loss": 1 / s, "train_nan": float("nan"), "os": 0.1 * s, "h_score": None} for s in (1, 2, 3)]
    terms, metrics = plots.training_terms(records).axes[0], plots.metrics_over_training(records).axes[0]
    assert labels_of(terms) == ["loss"] and labels_of(metrics) == ["OS"]
    assert metrics.lines[0].get_ydata() == pytest.approx([0.1, 0.2, 0.3])
    many = [{"step": 1, **{f"train_{i}": 1.0 for i in range(30)}}]
    assert len(plots.training_terms(many).axes[0].lines) == 30
    for figure in (plots.training_terms([]), plots.metrics_over_training([])):
        assert not figure.axes[0].lines


def test_confusion_matrix_has_rows_only_for_classes_that_occur():
    matrix = np.zeros((8, 8), int)
    matrix[0, [0, 7]] = 3, 1
    matrix[7, 1] = 5
    ax = confusion_matrix(matrix, NAMES).axes[0]
    assert np.asarray(ax.images[0].get_array()) == pytest.approx(np.array([[0.75, 0, 0.25], [0, 1, 0]]))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["mug", "unknown"]
    assert sorted(text.get_text() for text in ax.texts) == ["100", "25", "75"]


def test_any_class_name_can_be_drawn(recwarn):
    drawn(confusion_matrix(np.eye(8, dtype=int), NAMES))
    drawn(transition_matrices(np.full((8, 8), 1 / 8), NAMES))
    assert len(transition_matrices(np.eye(8).tolist(), NAMES, np.eye(8).tolist()).axes) == 2
    assert len(transition_matrices(None, NAMES, np.eye(8).tolist()).axes) == 1
    assert plain("two\nlines") == "two\\nlines" and len(plain("x" * 99, 18)) == 18


def test_matrices_of_any_size():
    names = [f"class {i}" for i in range(120)]
    assert drawn(confusion_matrix(np.eye(120, dtype=int), names)).size < 12e6
    assert drawn(confusion_matrix(np.eye(2, dtype=int), names)).size > 1e5


def test_suspicion_of_right_and_wrong_labels():
    score = np.clip((SCORE - 2) / 7, -1, 1)
    assert labels_of(plots.suspicion_histogram(score).axes[0]) == ["source labels (140)"]
    ax = plots.suspicion_histogram(score, UNKNOWN).axes[0]
    assert labels_of(ax) == ["label correct (80)", "label wrong (60)"]
    assert sum(patch.get_height() for patch in ax.patches) == 140


def test_map_of_features(tmp_path):
    features = np.r_[RNG.normal(0, 0.1, (30, 8)) + np.eye(8)[0], RNG.normal(0, 0.1, (30, 8)) + np.eye(8)[1]]
    points = tsne(features, seed=0)
    assert points.shape == (60, 2) and np.array_equal(points, tsne(features, seed=0))
    near = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert near[:30, :30].mean() < near[:30, 30:].mean()  # what is close in the features is close on the map
    group = groups_of(30, np.r_[np.zeros(20), np.full(10, 3)], np.arange(30), unknown=3)
    embedding = FeatureMap(group, np.r_[np.arange(30), np.arange(30)], points[:, 0], points[:, 1])
    write_feature_map(tmp_path / "tsne.csv", embedding)
    back = read_feature_map(tmp_path / "tsne.csv")
    assert np.array_equal(back.group, group) and back.x == pytest.approx(points[:, 0], abs=1e-4)
    assert [GROUPS[g] for g in sorted(set(group))] == ["source", "target shared", "target unknown"]
    assert labels_of(plots.feature_map(back).axes[0]) == ["source (30)", "target, common (20)", "target, private (10)"]
    assert set(groups_of(2, None, np.arange(2), 3)) == {0, 3}


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (6, 1), (12, 2)])
def test_a_map_of_few_points(shape):
    assert np.isfinite(tsne(np.full(shape, np.nan), 0)).all()
    assert np.isfinite(tsne(np.ones(shape), 0)).all() and tsne(np.ones(shape), 0).shape == (shape[0], 2)


def test_choice_of_points_depends_on_the_seed_alone():
    chosen = choose(1000, 50, seed=3)
    assert len(set(chosen)) == 50 and (np.diff(chosen) > 0).all() and np.array_equal(chosen, choose(1000, 50, seed=3))
    assert not np.array_equal(chosen, choose(1000, 50, seed=4))


def test_saving_leaves_one_whole_file(tmp_path):
    save(plots.density([Scores("t", SCORE, UNKNOWN, 2.0)], "score"), tmp_path / "density.png")
    assert [file.name for file in tmp_path.iterdir()] == ["density.png"]
    assert Image.open(tmp_path / "density.png").size == (736, 496)


def test_all_text_has_one_size():
    figures = [plots.density([Scores("t", SCORE, UNKNOWN, 2.0)], "score"), confusion_matrix(np.eye(40, dtype=int), NAMES * 5),
               plots.training_terms([{"step": 1, "train_a": 1.0}])]  # fmt: skip
    for ax in (figure.axes[0] for figure in figures):
        texts = [ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels()]
        texts += ax.get_legend().get_texts() if ax.get_legend() else []
        assert {text.get_fontsize() for text in texts} == {9}


def test_tensorboard_gets_curve_and_histograms():
    added = []

    class Writer:
        def add_pr_curve(self, tag, labels, values, step):
            added.append((tag, labels.sum(), values.min(), values.max(), step))

        def add_histogram(self, tag, values, step):
            added.append((tag, len(values), step))

    add_evaluation(Writer(), SCORE, UNKNOWN, 7)
    assert added == [("unknown", 60, 0.0, 1.0, 7), ("score/known", len(SCORE) - 60, 7), ("score/unknown", 60, 7)]
    added.clear()
    add_evaluation(Writer(), SCORE, None, 8)
    assert added == [("score", len(SCORE), 8)]


def test_nothing_uses_pyplot():
    folder = Path(plots.__file__).parent
    assert not [file for file in folder.glob("*.py") if re.search(r"^\s*(import|from) .*pyplot", file.read_text(), re.MULTILINE)]
