"""Questions and answers in a run folder: what to ask, answers taken in, predictions and target model written anew.

``answers.csv`` is the truth, every other file follows from it and from what the run kept: a command that was interrupted
is completed by the next one. The files before the answers of round N are kept in ``answers/N/``.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.evaluation.answers_file import (
    Answer,
    Question,
    read_answers,
    read_labels,
    read_questions,
    write_answers,
    write_questions,
)
from tllib_ext.evaluation.files import Predictions, load_split, read_predictions, write_predictions
from tllib_ext.evaluation.openset import OpenSetReport, evaluate
from tllib_ext.evaluation.random_sample import Sample, draw_sample, estimates, read_sample, write_sample
from tllib_ext.io import write_json
from tllib_ext.split import LabelSplit
from tllib_ext.target.diagnosis import group_unknown
from tllib_ext.target.model import decide
from tllib_ext.training.answer_space import Answered, AnswerSpace
from tllib_ext.training.run_dir import Lock
from tllib_ext.typing import PathLike, Record

__all__ = ["AnswerFiles", "Answers", "answer_run", "answered_metrics", "ask_run", "write_answered",
           "write_simulated"]  # fmt: skip

#: what a new set of answers replaces
_REPLACED = ("predictions.csv", "target_model.json", "results.json", "report.html", "answers.csv")
_LIKELY = 6
Answers = Union[PathLike, Mapping[str, Optional[str]]]


@dataclass
class AnswerFiles:
    """What a run folder holds for questions and answers."""

    folder: Path
    ended: bool = True

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        if self.ended and not (self.folder / "results.json").is_file():
            raise UserError(f"no finished run in {self.folder}: expected {self.folder / 'results.json'}, written at its end")

    @cached_property
    def split(self) -> LabelSplit:
        """The label sets of the run."""
        return load_split(self.folder / "config.json")

    @cached_property
    def space(self) -> AnswerSpace:
        """What the run kept of its target."""
        space, rows = AnswerSpace.load(self.folder), len(self.predictions.index)
        if space.base.shape != (rows, self.split.num_source + 1):
            raise UserError(f"{self.folder} keeps {len(space.z)} images, its predictions.csv has {rows}: it is not of one run")
        return space

    @cached_property
    def predictions(self) -> Predictions:
        """``predictions.csv`` as it is."""
        return read_predictions(self.folder / "predictions.csv", self.split)

    @property
    def paths(self) -> List[str]:
        """Of the target images, in the order of the space."""
        return [self.predictions.path[row] for row in np.argsort(self.predictions.index, kind="stable")]

    @cached_property
    def numbers(self) -> Dict[str, int]:
        """Path of a target image to its number."""
        return {path: number for number, path in enumerate(self.paths)}

    @property
    def labels(self) -> Optional[np.ndarray]:
        """True labels in the order of the space, where all are known."""
        label = self.predictions.label[np.argsort(self.predictions.index, kind="stable")]
        return label if (label < len(self.split.label_names)).all() else None

    @property
    def answers(self) -> Dict[int, Answer]:
        """All answers so far."""
        file = self.folder / "answers.csv"
        return read_answers(file, self.split, self.numbers) if file.is_file() else {}

    @property
    def sample(self) -> Optional[Sample]:
        """The random sample of ``--measure``, if one was drawn."""
        file = self.folder / "measure.csv"
        return read_sample(file, self.numbers) if file.is_file() else None

    @property
    def round(self) -> int:
        """How many sets of answers were taken in."""
        kept = self.folder / "answers"
        return len([name for name in os.listdir(kept) if name.isdecimal()]) if kept.is_dir() else 0

    def answered(self, answers: Mapping[int, Answer], trust: bool = False) -> Answered:
        """The correction by answers; those about the random sample measure, and correct nothing."""
        sample = self.sample
        measured = set() if sample is None else set(sample.index.tolist())
        rows = sorted(row for row, answer in answers.items() if answer.label is not None and row not in measured)
        labels = np.array([answers[row].label for row in rows], dtype=np.int64)
        confirmed = np.array([answers[row].confirmed for row in rows], dtype=bool)
        return self.space.answered(np.array(rows, dtype=np.int64), labels, confirmed, trust)


def ask_run(
    folder: PathLike,
    number: int = 20,
    measure: bool = False,
    write_page: Optional[Callable[[Path, Sequence[Question], int], object]] = None,
) -> List[Question]:
    """Choose target images to ask about and write ``questions.csv``; doubtful answers are asked again, first.

    Args:
        folder (str or Path): of a finished run
        number (int): of new images
        measure (bool): draw a random sample of known inclusion probabilities instead of the images that help most
        write_page (callable, optional): writes ``questions.html`` from folder, questions and number of the round
    """
    files = AnswerFiles(Path(folder))
    lock = Lock(files.folder)
    try:
        files = _complete(files)
        answers, seed = files.answers, int(_json(files.folder / "config.json").get("seed") or 0)
        answered = files.answered(answers)
        doubtful = answered.index[answered.correction.doubtful].tolist()
        posterior, sample = answered.posterior(), files.sample
        if measure:
            taken = np.array(sorted(answers), dtype=np.int64)
            sample = draw_sample(decide(posterior), number, taken, seed + files.round) if sample is None else sample
            write_sample(files.folder / "measure.csv", sample, files.paths)
            new, doubtful = np.array([row for row in sample.index.tolist() if row not in answers], dtype=np.int64), []
        else:
            before = {*answers, *(() if sample is None else sample.index.tolist())}
            new = files.space.choose(number, sorted(before), seed)
        names, order = files.split.label_names, np.argsort(-posterior, axis=1, kind="stable")[:, :_LIKELY]
        questions = [Question(row, files.paths[row], [names[k] for k in order[row]], again)
                     for rows, again in ((doubtful, True), (new.tolist(), False)) for row in rows]  # fmt: skip
        write_questions(files.folder / "questions.csv", questions, files.round)
        if write_page is not None:
            write_page(files.folder, questions, files.round)
        return questions
    finally:
        lock.release()


def answer_run(
    folder: PathLike, answers: Answers, trust: bool = False, write_report: Optional[Callable[[Path], object]] = None
) -> Record:
    """Take in answers and write predictions and target model anew; returns the entry ``answers`` of ``target_model.json``.

    Args:
        folder (str or Path): of a finished run
        answers (str, Path or dict): a CSV file with ``path,label``, or path to label
        trust (bool): also use answers that contradict their neighbourhood
        write_report (callable, optional): makes the page of the folder anew, where it has one
    """
    files = AnswerFiles(Path(folder))
    lock = Lock(files.folder)
    try:
        files = _complete(files, write_report)
        if isinstance(answers, Mapping):
            given = {row: replace(answer, round=files.round) for row, answer in
                     read_labels(answers, files.split, files.numbers).items()}  # fmt: skip
        else:
            given = read_answers(answers, files.split, files.numbers)
        if not given:
            raise UserError("no answers: expected at least one image with a label")
        before, again = files.answers, read_questions(files.folder / "questions.csv", files.numbers)
        earlier, merged = files.answered(before), dict(before)
        doubtful = set(earlier.index[earlier.correction.doubtful].tolist())
        for row, answer in given.items():
            same = row in before and before[row].label == answer.label
            asked_again = answer.round == files.round and (again.get(row, False) or isinstance(answers, Mapping))
            confirmed = same and (before[row].confirmed or (row in doubtful and asked_again))
            merged[row] = Answer(answer.label, confirmed, files.round)
        answered = files.answered(merged)
        if trust:
            for row in answered.index[answered.correction.doubtful].tolist():
                merged[row] = replace(merged[row], confirmed=True)
            answered = files.answered(merged)
        _keep_earlier(files)
        write_answers(files.folder / "answers.csv", merged, files.split, files.paths)  # from here on the answers count
        facts = write_answered(files, answered, merged)[0]
        if write_report is not None and (files.folder / "report.html").is_file():
            write_report(files.folder)
        return facts
    finally:
        lock.release()


def write_simulated(folder: Path, answered: Answered, split: LabelSplit) -> Record:
    """Write the answers of a simulated person into the folder of a run that ends; returns what belongs in ``results.json``."""
    files = AnswerFiles(folder, ended=False)
    answers = {int(row): Answer(int(label), bool(sure)) for row, label, sure in
               zip(answered.index, answered.labels, answered.confirmed)}  # fmt: skip
    write_answers(folder / "answers.csv", answers, split, files.paths)
    return write_answered(files, answered, answers)[1]


def _keep_earlier(files: AnswerFiles) -> None:
    """Copy the files that are replaced to ``answers/N``; the folder appears complete or not at all."""
    kept = files.folder / "answers" / str(files.round)
    draft = kept.with_name(f".{kept.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name in _REPLACED:
        if (files.folder / name).is_file():
            shutil.copy2(files.folder / name, draft / name)
    draft.rename(kept)


def write_answered(files: AnswerFiles, answered: Answered, answers: Mapping[int, Answer]) -> Tuple[Record, Record]:
    """Write ``predictions.csv``, ``target_model.json`` and, of a run that has ended, ``results.json`` as they follow from the
    answers; returns the facts and what belongs in ``results.json``."""
    split, paths, labels = files.split, files.paths, files.labels
    prediction, after, base = answered.prediction(), answered.posterior(), files.space.base
    mask = np.isin(np.arange(len(paths)), answered.index)
    facts = _facts(files, answered, answers, prediction)
    sample = files.sample
    if sample is not None:
        found = {row: answer.label for row, answer in answers.items() if answer.label is not None}
        known = {"before": decide(base), "after": decide(after)}
        facts["estimates"] = estimates(sample, found, known, split, answered.index, answered.labels)
    write_predictions(
        files.folder / "predictions.csv", prediction, np.arange(len(paths)), paths, split, 0.5, labels, mask
    )  # fmt: skip
    unknown = np.asarray(prediction.unknown)
    results: Record = {"answers": facts["number"], "predicted_unknown": float(unknown.mean())}
    if labels is not None and not mask.all():
        results.update(answered_metrics(answered, labels, split))
    if files.ended:
        write_json(files.folder / "results.json", {**_json(files.folder / "results.json"), **results})
    model = _json(files.folder / "target_model.json") if (files.folder / "target_model.json").is_file() else {}
    groups = np.full(len(paths), -1, dtype=np.int64)
    expected = split.num_source * unknown.mean() / max(1 - unknown.mean(), 1 / split.num_source)
    groups[unknown] = group_unknown(files.space.z[unknown].astype(np.float32), expected)[1]
    model.update(called_unknown=float(unknown.mean()), decides=False, groups=groups.tolist(), answers=facts)
    for name in ("share", "share_std", "share_interval"):  # of the model before
        model.pop(name, None)
    doubtful = len(facts["doubtful"])
    model["warnings"] = [f"{doubtful} answers contradict their neighbourhood and do not count yet: tllib-ext ask asks them again"]
    model["warnings"] *= bool(doubtful)
    facts["digest"] = _digest(files)  # last: a command that was interrupted before is completed by the next one
    write_json(files.folder / "target_model.json", model)
    return facts, results


def _digest(files: AnswerFiles) -> str:
    return hashlib.sha256((files.folder / "answers.csv").read_bytes()).hexdigest()


def _complete(files: AnswerFiles, write_report: Optional[Callable[[Path], object]] = None) -> AnswerFiles:
    """Write what follows from ``answers.csv`` if a command was interrupted after it; the files as they are then."""
    if (files.folder / "answers.csv").is_file():
        model = _json(files.folder / "target_model.json") if (files.folder / "target_model.json").is_file() else {}
        if (model.get("answers") or {}).get("digest") != _digest(files):
            write_answered(files, files.answered(files.answers), files.answers)
            if write_report is not None and (files.folder / "report.html").is_file():
                write_report(files.folder)
            return AnswerFiles(files.folder)
    return files


def _facts(files: AnswerFiles, answered: Answered, answers: Mapping[int, Answer], prediction: object) -> Record:
    """What the page shows of the answers: how many, which are doubtful, what changed by class."""
    split, paths = files.split, files.paths
    before = decide(files.space.base)
    probs, _, unknown = map(np.asarray, prediction)  # type: ignore[call-overload]
    after = np.where(unknown, split.unknown, probs.argmax(1))
    classes = [{"name": split.label_names[k], "before": int((before == k).sum()), "after": int((after == k).sum()),
                "came": int(((after == k) & (before != k)).sum()), "left": int(((after != k) & (before == k)).sum())}
               for k in range(split.num_source + 1)]  # fmt: skip
    doubtful = answered.index[answered.correction.doubtful].tolist()
    return {
        "number": len(answered.index),
        "cannot_tell": sum(answer.label is None for answer in answers.values()),
        "doubtful": [{"path": paths[row], "label": split.label_names[int(answers[row].label or 0)]} for row in doubtful],
        "noise": answered.correction.noise,
        "changed": int((before != after).sum()),
        "unknown_before": float((before == split.unknown).mean()),
        "unknown_after": float(unknown.mean()),
        "classes": classes,
    }


def answered_metrics(answered: Answered, labels: np.ndarray, split: LabelSplit) -> Record:
    """Metrics of the images that were not asked about: after the answers, and ``before_os``, … before them."""
    kept = np.setdiff1d(np.arange(len(labels)), answered.index)

    def report(posterior: np.ndarray) -> OpenSetReport:
        p = posterior[kept]
        return evaluate(labels[kept], decide(p), p[:, -1], split, p[:, :-1])

    before, after = report(answered.space.base), report(answered.posterior())
    names = ("os", "os_star", "unk", "h_score", "accuracy")
    return {**after.flat(), **{f"before_{name}": getattr(before, name) for name in names}}


def _json(file: Path) -> Record:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a JSON object")
    return value
