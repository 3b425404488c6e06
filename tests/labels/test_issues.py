"""The audit without training: ranking, kinds, near-duplicates, many classes, files and the command."""

import csv
from contextlib import suppress

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from test_labels import blobs, flip, pair, symmetric

from tllib_ext import find_label_issues
from tllib_ext.cli.main import main
from tllib_ext.errors import UserError
from tllib_ext.evaluation.suspects_file import read_suspects
from tllib_ext.labels import duplicates, estimate_labels, issues
from tllib_ext.labels.discriminative import Ridge, prototype_scores
from tllib_ext.labels.duplicates import near_duplicates
from tllib_ext.labels.uncertainty import doubtful_labels
from tllib_ext.split import LabelSplit


def to_runner_up(features, true, rate, seed):
    """Random samples get the label of the nearest wrong class mean."""
    means = np.stack([features[true == k].mean(0) for k in range(true.max() + 1)])
    distance = ((features[:, None] - means) ** 2).sum(2)
    distance[np.arange(len(true)), true] = np.inf
    return np.where(np.random.default_rng(seed).random(len(true)) < rate, distance.argmin(1), true)


@pytest.mark.parametrize("rate", [0.2, 0.4])
def test_noise_that_follows_the_image_is_found_and_corrected(rate):
    features, true = blobs([60] * 8, spread=1.0)
    given = to_runner_up(features, true, rate, 0)
    model, wrong = estimate_labels(features, given, 8), (given != true).mean()
    assert model.structure in ("similar", "mixed")
    assert model.rate_known and model.rate_interval[0] <= wrong <= model.rate_interval[1]
    assert (model.corrected == true).mean() >= 0.95
    found = find_label_issues(features, given)
    assert roc_auc_score(given != true, found.suspicion) >= 0.98


def test_what_cannot_be_told_is_said_and_no_label_is_changed():
    features, true = blobs([60] * 6, spread=4.0)
    given = to_runner_up(features, true, 0.2, 0)
    model = estimate_labels(features, given, 6)
    assert not model.rate_known and "cannot be told" in model.summary()
    assert model.rate_interval[0] <= (given != true).mean() <= model.rate_interval[1]
    assert (model.corrected == given).all() and 0 < model.rate < 0.5 and model.rate_std > 0.05
    doubt = 1 - model.confidence
    assert doubt[given != true].mean() > doubt[given == true].mean()


def test_doubtful_labels_longhand():
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
    r = doubtful_labels(p, np.array([0, 2]))
    own = (1 + 0.3 / 0.6) / 2
    np.testing.assert_allclose(r, [[1, 0, 0], [(1 - own) / 7, 6 * (1 - own) / 7, own]], atol=1e-6)


def test_ridge_leaves_each_sample_out():
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((30, 4)).astype(np.float32), rng.integers(3, size=30)
    ridge = Ridge(z, y, 3)
    penalty = ridge.penalty * ((z - z.mean(0)) ** 2).sum()
    targets = np.eye(3)[y]
    for i in (0, 7, 29):
        rest = np.arange(30) != i
        # The intercept is not penalised: centre by what is left.
        mean, share = z[rest].mean(0), targets[rest].mean(0)
        gram = (z[rest] - mean).T @ (z[rest] - mean) + penalty * np.eye(4)
        expected = share + (z[i] - mean) @ np.linalg.solve(gram, (z[rest] - mean).T @ (targets[rest] - share))
        np.testing.assert_allclose(ridge.left_out(z, y)[i], expected, atol=1e-4)
    g = z / np.linalg.norm(z, axis=1, keepdims=True)
    sums = np.stack([g[y == k].sum(0) for k in range(3)])
    without = sums[y[5]] - g[5]
    assert prototype_scores(sums, g, y)[5, y[5]] == pytest.approx(g[5] @ without / np.linalg.norm(without), abs=1e-4)


def test_labels_of_any_kind_and_kinds_of_doubt():
    names = np.array([f"class {k}" for k in range(12)])
    features, true = blobs([30] * 12 + [1] * 20)  # the last twenty are images of no class
    given = names[true % 12]
    given[3] = "class 5"
    features = np.concatenate([features, features[[50, 90]]])
    given = np.concatenate([given, ["class 11", given[90]]])
    found = find_label_issues(features, given)
    assert found.suggested[3] == "class 0" and found.kind[3] == "another class" and found.suspicion[3] > 0.5
    assert (found.suspicion[360:380] > 0).mean() >= 0.9 and set(found.kind) == {"fine", "duplicate", "another class"}
    assert found.group[50] == found.group[380] >= 0 and found.group[90] == found.group[381]
    assert found.kind[380] == "duplicate" and found.kind[381] == "fine"
    assert (found.kind[:360] == "fine").mean() > 0.95
    assert "near-duplicates" in found.summary()
    with pytest.raises(UserError, match="at least 2 classes"):
        find_label_issues(features, np.zeros(len(features), dtype=int))


def test_many_samples_are_judged_in_chunks_as_well_as_few(monkeypatch):
    features, true = blobs([150] * 8, spread=0.8)
    given = flip(true, pair(8, 0.3), 0)
    dense = find_label_issues(features, given)
    monkeypatch.setattr(issues, "_DENSE", 9000)
    found = find_label_issues(features, given)
    assert found.pred_probs is None and (found.corrected == given).all() and "none is corrected" in found.summary()
    # The same views on every sample: the second view of the dense audit alone.
    np.testing.assert_allclose(found.p_given, dense.p_given, atol=0.05)
    assert roc_auc_score(given != true, found.suspicion) > 0.97


def test_likely_pairs_find_what_all_pairs_find(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 32)).astype(np.float32)
    x = np.concatenate([x, x[:40] + 0.02 * rng.standard_normal((40, 32)).astype(np.float32)])
    exact = near_duplicates(x)
    monkeypatch.setattr(duplicates, "_EXACT", 10)
    assert (exact >= 0).sum() == 80
    np.testing.assert_array_equal(near_duplicates(x), exact)


def test_the_command_writes_the_files(tmp_path, capsys):
    features, true = blobs([40] * 10, spread=0.4)
    given = flip(true, symmetric(10, 0.2), 0)
    classes = np.array(["ant", "b e e", "=cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"])
    paths = np.array([f"{classes[k]}/{i} 'x'.jpg" for i, k in enumerate(given)])
    np.savez(tmp_path / "domain.npz", features=features, labels=given, classes=classes, paths=paths)
    rows = [[path, classes[k]] for path, k in zip(paths, true)]
    with open(tmp_path / "labels.csv", "w", newline="") as stream:
        csv.writer(stream).writerows([["path", "given", "clean"], *[[p, classes[g], c] for (p, c), g in zip(rows, given)]])
    words = ["audit", str(tmp_path / "domain.npz"), "--labels", str(tmp_path / "labels.csv"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "estimated to be wrong" in text and "'suspects_auroc': 1.0" in text
    back = read_suspects(tmp_path / "out/suspects.csv", LabelSplit(classes.tolist()))
    assert back.is_wrong[: (given != true).sum()].all() and set(back.kind) <= {*issues.KINDS, "fine"}
    assert np.load(tmp_path / "out/pred_probs.npy").shape == (400, 10)
    lines = (tmp_path / "out/corrected.txt").read_text().splitlines()
    assert [int(line.rpartition(" ")[2]) for line in lines] == true.tolist()
    with open(tmp_path / "out/moves.csv", newline="") as stream:
        assert len(list(csv.DictReader(stream))) == (given != true).sum()
    assert main(["audit", "--out", str(tmp_path / "o")]) == 2 and "name what to audit" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "nowhere"), "--out", str(tmp_path / "o")]) == 2
    assert not (tmp_path / "o").exists()


def test_the_list_of_corrected_labels_is_read_as_labels(tmp_path, capsys):
    """Numbers are positions in the data set's classes, one of which has no image here."""
    features, true = blobs([40] * 10, spread=0.4)
    given = flip(true, symmetric(10, 0.2), 0)
    names = [f"{i}\n.jpg" if i == 1 else f"{i}.jpg" for i in range(len(given))]
    np.savez(tmp_path / "d.npz", features=features, labels=given + 1,
             classes=np.array(list("klmnopqrstu")), paths=np.array(names))  # fmt: skip
    words = ["audit", str(tmp_path / "d.npz"), "--out", str(tmp_path / "out")]
    assert main(words) == 0 and "cannot hold 1 paths" in capsys.readouterr().out
    lines = (tmp_path / "out/corrected.txt").read_text().splitlines()
    assert lines == [f"{i}.jpg {k + 1}" for i, k in enumerate(true) if i != 1]
    arrays = dict(np.load(tmp_path / "d.npz"))
    np.savez(tmp_path / "d.npz", **{**arrays, "paths": np.array([name.replace("\n", "") for name in names])})
    assert main(words) == 0  # its own folder
    assert main([*words[:2], "--labels", str(tmp_path / "out/corrected.txt"), "--out", str(tmp_path / "again")]) == 0
    labels = np.load(tmp_path / "again/labels.npy")
    assert labels.tolist() == true.tolist()


def test_the_moves_of_an_audit_are_made_from_any_folder(tmp_path, capsys, monkeypatch):
    features, true = blobs([40] * 10, spread=0.4)
    given, names = flip(true, symmetric(10, 0.2), 0), np.array(list("abcdefghij"))
    paths = [f"{names[k]}/{i}.jpg" for i, k in enumerate(given)]
    (tmp_path / "data").mkdir()
    for path in paths:
        (tmp_path / "data" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / path).write_text("image")
    np.savez(tmp_path / "data/d.npz", features=features, labels=given, classes=names, paths=np.array(paths))
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "data/d.npz", "--out", "out"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["apply", "../out/moves.csv", "--yes"]) == 0
    assert f"{(given != true).sum()} moved, 0 not moved" in capsys.readouterr().out
    assert {path.parent.name for path in (tmp_path / "data").rglob("*.jpg")} == set(names)
    assert all((tmp_path / "data" / names[k] / f"{i}.jpg").exists() for i, k in enumerate(true))


def test_an_audit_owns_its_folder(tmp_path, capsys):
    features, true = blobs([20] * 3, spread=0.4)
    np.savez(tmp_path / "d.npz", features=features, labels=true, classes=np.array(list("xyz")))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    (tmp_path / "run/suspects.csv").write_text("a run's")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/labels.npy").write_text("mine")
    for folder, words in (("run", "it is a run's"), ("notes", "it holds labels.npy")):
        assert main(["audit", str(tmp_path / "d.npz"), "--out", str(tmp_path / folder)]) == 2
        assert words in capsys.readouterr().err
    assert (tmp_path / "run/suspects.csv").read_text() == "a run's" and (tmp_path / "notes/labels.npy").read_text() == "mine"


@pytest.mark.parametrize("words, message", [
    (["--least", "nan"], "expected a number"), (["--out", ""], "an empty name"), (["--labels-column", "given"], "give the file"),
    (["--labels", ""], "expected text")])  # fmt: skip
def test_arguments_without_a_meaning_are_refused(tmp_path, capsys, words, message):
    features, true = blobs([20] * 3, spread=0.4)
    np.savez(tmp_path / "d.npz", features=features, labels=true, classes=np.array(list("xyz")))
    with suppress(SystemExit):
        assert main(["audit", str(tmp_path / "d.npz"), "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()
