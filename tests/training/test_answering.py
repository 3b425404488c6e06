"""Questions and answers in a run folder, through the commands: files, corrections, errors with the line, interruptions."""

import csv
import json
import shutil

import numpy as np
import pytest

from tllib_ext.cli.main import main
from tllib_ext.errors import UserError
from tllib_ext.evaluation.files import load_split, read_predictions
from tllib_ext.training import answer_outputs, answering
from tllib_ext.training.answer_files import AnswerFiles
from tllib_ext.training.answer_space import FILE, AnswerSpace
from tllib_ext.training.answering import answer_run, ask_run
from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.trainer import train

NAMES = np.array(["ant", "bee", "=cat", "dog", "u", "v"])


def write_data(folder):
    rng = np.random.default_rng(0)
    means = 2.2 * rng.standard_normal((6, 24))
    turn = np.linalg.qr(rng.standard_normal((24, 24)))[0]
    ys, yt = np.repeat(np.arange(4), 40), np.repeat([0, 1, 4, 5], 30)
    xs = means[ys] + rng.standard_normal((160, 24))
    xt = 0.55 * means[yt] + 0.45 * means[yt] @ turn + rng.standard_normal((120, 24))
    for name, x, y in (("s", xs, ys), ("t", xt, yt)):
        np.savez(folder / f"{name}.npz", features=x.astype(np.float32), labels=y, classes=NAMES)
    return np.where(yt < 4, yt, 4)


def config(folder, method="mixture", **more):
    steps = None if method == "mixture" else 20
    return RunConfig(root=str(folder), data="features", source="s", target="t", split="2/2/2", method=method, steps=steps,
                     noise="none", no_report=True, log=str(folder / "run"), **more)  # fmt: skip


@pytest.fixture(scope="module", params=["mixture", "source_only"])
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    labels = write_data(folder)
    train(build(config(folder, request.param)))
    return folder / "run", labels


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "run")
    return tmp_path / "run", made[1]


def name_of(label):
    return ["ant", "bee", "=cat", "dog", "unknown"][label]


def fill_in(folder, labels, file, change=lambda row, label: label):
    """Fill in questions.csv as a person with a spreadsheet would."""
    numbers = AnswerFiles(folder).numbers
    with open(folder / "questions.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert all(row["label"] == "" for row in rows)
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, ["label", "path", "round", "note"])
        writer.writeheader()
        for i, row in enumerate(rows):
            label = name_of(change(i, labels[numbers[row["path"]]]))
            writer.writerow({"path": row["path"], "round": row["round"], "label": label, "note": "x,y"})
    return [numbers[row["path"]] for row in rows]


def decisions(folder):
    p = read_predictions(folder / "predictions.csv", load_split(folder / "config.json"))
    return p, p.predicted


def test_twenty_answers_by_the_commands(run, tmp_path, capsys):
    folder, labels = run
    before, decided = decisions(folder)
    old = {name: (folder / name).read_bytes() for name in ("predictions.csv", "target_model.json", "results.json")}
    assert main(["ask", str(folder), "--n", "20"]) == 0
    out = capsys.readouterr().out
    assert "20 questions" in out and f"tllib-ext answer {folder} answers.csv" in out
    assert (folder / "questions.html").is_file()
    asked = fill_in(folder, labels, tmp_path / "answers.csv")
    assert main(["answer", str(folder), str(tmp_path / "answers.csv"), "--trust"]) == 0
    assert "20 answers" in capsys.readouterr().out
    after, corrected = decisions(folder)
    rest = np.setdiff1d(np.arange(120), asked)
    assert (corrected == labels)[rest].mean() > max(0.85, (decided == labels)[rest].mean() - 0.01)
    assert (corrected[asked] == labels[asked]).all()
    assert after.path == before.path and not after.labelled[asked].any() and after.labelled[rest].all()
    model = json.loads((folder / "target_model.json").read_text())
    assert model["answers"]["number"] == 20 and model["called_unknown"] == (corrected == 4).mean()
    assert model["answers"]["changed"] == int((corrected != decided).sum())
    assert sum(row["after"] for row in model["answers"]["classes"]) == 120
    results = json.loads((folder / "results.json").read_text())
    assert results["num_images"] == 100 and results["answers"] == 20
    assert results["os"] == pytest.approx(after.evaluate(load_split(folder / "config.json")).os)
    for name, content in old.items():
        assert (folder / "answers" / "0" / name).read_bytes() == content


def test_a_second_round_goes_on_and_keeps_the_first(run, tmp_path):
    folder, labels = run
    ask_run(folder, 6)
    first = fill_in(folder, labels, tmp_path / "a.csv")
    answer_run(folder, tmp_path / "a.csv", trust=True)
    middle = (folder / "predictions.csv").read_bytes()
    assert not {question.index for question in ask_run(folder, 6)} & set(first)
    second = fill_in(folder, labels, tmp_path / "b.csv")
    assert answer_run(folder, tmp_path / "b.csv", trust=True)["number"] == 12
    assert (folder / "answers" / "1" / "predictions.csv").read_bytes() == middle
    assert set(AnswerFiles(folder).answers) == {*first, *second}


def test_all_at_once_or_in_any_order_is_the_same(run, tmp_path):
    folder, labels = run
    paths = AnswerFiles(folder).paths
    answers = {paths[i]: name_of(labels[i]) for i in range(0, 120, 9)}
    other = shutil.copytree(folder, tmp_path / "other")
    answer_run(folder, answers, trust=True)
    rest = dict(list(answers.items())[5:])
    answer_run(other, rest, trust=True)
    answer_run(other, dict(list(answers.items())[:5]), trust=True)
    a, b = (AnswerSpaceResult(f) for f in (folder, other))
    assert a.keys() == b.keys()
    split = load_split(folder / "config.json")
    scores = [read_predictions(f / "predictions.csv", split).score for f in (folder, other)]
    confirmed = [f for f in (folder, other) if any(answer.confirmed for answer in AnswerFiles(f).answers.values())]
    if not confirmed:
        assert scores[0] == pytest.approx(scores[1], abs=1e-9)


def AnswerSpaceResult(folder):
    return AnswerFiles(folder).answers


def test_a_doubtful_answer_is_asked_again_and_counts_when_it_is_repeated(run, tmp_path, capsys):
    folder, labels = run
    ask_run(folder, 24)
    numbers = AnswerFiles(folder).numbers
    wrong = {}

    def change(i, label):
        if i == 3:
            wrong["label"] = (label + 1) % 2 if label < 2 else 0
            return wrong["label"]
        return label

    asked = fill_in(folder, labels, tmp_path / "a.csv", change)
    facts = answer_run(folder, tmp_path / "a.csv")
    doubtful = [numbers[item["path"]] for item in facts["doubtful"]]
    if asked[3] not in doubtful:
        pytest.skip("the target of this method is too poor to doubt that answer")
    assert "contradict" in json.loads((folder / "target_model.json").read_text())["warnings"][0]
    # the same file once more confirms nothing: nobody was asked again
    assert len(answer_run(folder, tmp_path / "a.csv")["doubtful"]) == len(doubtful)
    questions = ask_run(folder, 2)
    assert [q.index for q in questions[: len(doubtful)]] == doubtful and all(q.again for q in questions[: len(doubtful)])
    fill_in(folder, labels, tmp_path / "b.csv", lambda i, label: wrong["label"] if questions[i].index == asked[3] else label)
    facts = answer_run(folder, tmp_path / "b.csv")
    assert asked[3] not in [numbers[item["path"]] for item in facts["doubtful"]]
    assert AnswerFiles(folder).answers[asked[3]].confirmed
    assert decisions(folder)[1][asked[3]] == wrong["label"]


def test_a_random_sample_measures_and_corrects_nothing(run, tmp_path, capsys):
    folder, labels = run
    _, decided = decisions(folder)
    assert main(["ask", str(folder), "--measure", "--n", "60"]) == 0
    asked = fill_in(folder, labels, tmp_path / "m.csv")
    assert len(asked) == 60
    assert main(["answer", str(folder), str(tmp_path / "m.csv")]) == 0
    assert "drawn at random, with 95% intervals" in capsys.readouterr().out
    found = json.loads((folder / "target_model.json").read_text())["answers"]["estimates"]
    assert (decisions(folder)[1] == decided).all()
    estimate, low, high = found["before"]["accuracy"]
    assert low <= estimate <= high and low <= (decided == labels).mean() <= high
    assert found["after"] == found["before"]
    assert not {q.index for q in ask_run(folder, 10)} & set(asked)
    fill_in(folder, labels, tmp_path / "a.csv")
    answer_run(folder, tmp_path / "a.csv", trust=True)
    found = json.loads((folder / "target_model.json").read_text())["answers"]["estimates"]
    assert found["number"] == 60
    assert found["after"] != found["before"] or found["before"]["accuracy"][0] == 1  # there was nothing to correct


@pytest.mark.parametrize(
    "lines, words",
    [
        (["path,label", "{0},ant", "{1},ante"], "line 3: unknown label 'ante': did you mean 'ant'"),
        (["path,label", "{0},ant", "", "nothing.jpg,ant"], "line 4: 'nothing.jpg' is no target image of this run"),
        (["label,path", "ant,{0}", "bee,{1}", "dog,{0}"], "line 4: .* has another label than in line 2"),
        (["path,label", "{0},ant,3"], "line 2: 3 cells, the header has 2"),
        (["name,label", "{0},ant"], "no column path"),
        (["path,label", "{0},"], "no answers"),
        ([], "no column path"),
    ],
)
def test_errors_name_the_line_and_change_nothing(run, tmp_path, lines, words):
    folder, _ = run
    paths = AnswerFiles(folder).paths
    (tmp_path / "bad.csv").write_text("\n".join(line.format(*paths) for line in lines) + "\n")
    before = {file.name: file.read_bytes() for file in folder.glob("*.*")}
    with pytest.raises(UserError, match=words):
        answer_run(folder, tmp_path / "bad.csv")
    assert {file.name: file.read_bytes() for file in folder.glob("*.*")} == before and not (folder / "answers").exists()


def test_labels_in_any_case_none_of_these_and_cannot_tell(run, tmp_path):
    folder, _ = run
    paths = AnswerFiles(folder).paths
    rows = ["ANT", "unknown", "None of these", "Cannot Tell", "=cat", "'=cat"]
    text = "Label,PATH\n" + "".join(f"{label},{path}\n" for label, path in zip(rows, paths))
    (tmp_path / "a.csv").write_text("\ufeff" + text.replace("\n", "\r\n"))
    facts = answer_run(folder, tmp_path / "a.csv", trust=True)
    assert facts["number"] == 5 and facts["cannot_tell"] == 1
    answers = AnswerFiles(folder).answers
    assert [answers[i].label for i in range(6)] == [0, 4, 4, None, 2, 2]
    assert 3 not in {q.index for q in ask_run(folder, 30)}


def test_an_interrupted_command_is_completed_by_the_next(run, tmp_path, monkeypatch):
    folder, labels = run
    paths = AnswerFiles(folder).paths
    answers = {paths[i]: name_of(labels[i]) for i in range(0, 120, 12)}
    whole = shutil.copytree(folder, tmp_path / "whole")
    answer_run(whole, answers, trust=True)
    for name in ("write_answers", "write_predictions", "write_json"):
        broken = shutil.copytree(folder, tmp_path / name)
        with monkeypatch.context() as patch:
            patch.setattr(
                answering if name == "write_answers" else answer_outputs,
                name,
                lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt),
            )
            with pytest.raises(KeyboardInterrupt):
                answer_run(broken, answers, trust=True)
        read_predictions(broken / "predictions.csv", load_split(broken / "config.json"))
        ask_run(broken, 3)  # completes what was begun
        if name != "write_answers":  # the answers were taken in
            assert (broken / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()
        answer_run(broken, answers, trust=True)
        assert (broken / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()


def test_the_space_is_kept_small_and_read_back(made):
    folder, _ = made
    space = AnswerSpace.load(folder)
    assert space.z.dtype == np.float16 and space.z.shape[1] <= 256 and np.isfinite(space.base).all()
    split = load_split(folder / "config.json")
    p = read_predictions(folder / "predictions.csv", split)
    closed = space.base[:, :-1].argmax(1)
    assert (np.where(space.base[:, -1] > 0.5, split.unknown, closed) == p.predicted).all()


def test_a_run_without_answers_says_what_to_do(tmp_path):
    write_data(tmp_path)
    train(build(config(tmp_path, no_answers=True)))
    assert not (tmp_path / "run" / FILE).exists()
    with pytest.raises(UserError, match="no_answers=True; train it again"):
        ask_run(tmp_path / "run", 5)
    with pytest.raises(UserError, match="no finished run"):
        ask_run(tmp_path, 5)
    with pytest.raises(UserError, match="choose one of them"):
        build(config(tmp_path, answers=5, no_answers=True))


def test_a_simulated_person_in_train(tmp_path):
    labels = write_data(tmp_path)
    outcome = train(build(config(tmp_path, answers=20)))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert "20 answers" in results["told"] and results["num_images"] == 100 and results["answers"] == 20
    assert results["os"] == outcome.report.os and results["before_os"] is not None
    p, decided = decisions(tmp_path / "run")
    assert results["os"] == pytest.approx(p.evaluate(load_split(tmp_path / "run" / "config.json")).os)
    assert (decided == labels).mean() > 0.8
    assert len(AnswerFiles(tmp_path / "run").answers) == 20


def test_a_simulated_person_needs_labels(tmp_path):
    write_data(tmp_path)
    arrays = dict(np.load(tmp_path / "t.npz"))
    arrays.pop("labels")
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(UserError, match="answers=20"):
        build(RunConfig(root=str(tmp_path), data="features", source="s", target="t", method="mixture", noise="none", answers=20))


def test_a_run_asks_and_is_answered_from_python(tmp_path):
    from tllib_ext import RunConfig as Config
    from tllib_ext import train as train_run

    labels = write_data(tmp_path)
    run = train_run(Config(**{**config(tmp_path).to_dict(), "log": str(tmp_path / "run")}))
    paths = run.ask(20)
    numbers = AnswerFiles(run.folder).numbers
    corrected = run.answer({path: name_of(labels[numbers[path]]) for path in paths}, trust=True)
    assert len(paths) == 20 and corrected.results["answers"] == 20 and corrected.report.num_images == 100
    assert (corrected.predictions.predicted == labels).mean() > 0.85
    assert run.results.get("answers") is None and not set(corrected.ask(5)) & set(paths)


@pytest.mark.slow
def test_a_grid_says_that_its_methods_had_answers(tmp_path, capsys):
    write_data(tmp_path)
    words = ["compare", str(tmp_path), "-d", "features", "--tasks", "s:t", "-s", "s", "-t", "t", "--split", "2/2/2"]
    more = [
        "--methods",
        "mixture",
        "--noise",
        "none",
        "--seeds",
        "0",
        "--answers",
        "10",
        "--no-report",
        "--out",
        str(tmp_path / "g"),
    ]
    words = [word for word in words if word not in ("--tasks", "s:t")]
    assert main([*words, *more, "--jobs", "1"]) == 0
    assert "10 answers" in capsys.readouterr().out
