"""Questions and answers in a run folder: what to ask, answers taken in.

``answers.csv`` is the truth, every other file follows from it and from what the run kept: a command that was interrupted
is completed by the next one. The files before the answers of round N are kept in ``answers/N/``.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Callable, List, Mapping, Optional, Sequence, Union

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
)  # fmt: skip
from tllib_ext.evaluation.random_sample import draw_sample, write_sample
from tllib_ext.target.model import decide
from tllib_ext.training.answer_files import AnswerFiles, read_object
from tllib_ext.training.answer_outputs import complete, write_answered
from tllib_ext.training.run_dir import Lock
from tllib_ext.typing import PathLike, Record

__all__ = ["Answers", "answer_run", "ask_run"]

#: what a new set of answers replaces
_REPLACED = ("predictions.csv", "target_model.json", "results.json", "report.html", "answers.csv")
_LIKELY = 6
Answers = Union[PathLike, Mapping[str, Optional[str]]]


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
        files = complete(files)
        answers, seed = files.answers, int(read_object(files.folder / "config.json").get("seed") or 0)
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
        files = complete(files, write_report)
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
