"""CSV files of questions about target images and of a person's answers."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from tllib_ext.errors import UserError, closest
from tllib_ext.evaluation.files import UNKNOWN
from tllib_ext.io import escape_formula, open_text, unescape_formula, write_rows
from tllib_ext.split import LabelSplit
from tllib_ext.typing import PathLike

__all__ = [
    "CANNOT_TELL",
    "Answer",
    "Question",
    "read_answers",
    "read_labels",
    "read_questions",
    "write_answers",
    "write_questions",
]

CANNOT_TELL = "cannot tell"
_ANSWERS = ("path", "label", "confirmed", "round")
_QUESTIONS = ("path", "label", "likely", "again", "round")


@dataclass(frozen=True)
class Answer:
    """What a person said of a target image.

    Args:
        label (int, optional): class, or K for unknown; None for an image of which the person cannot tell
        confirmed (bool): whether the same answer was given when it was asked again
        round (int, optional): number of the questions that it answers, None in a file that does not say
    """

    label: Optional[int]
    confirmed: bool = False
    round: Optional[int] = None


@dataclass(frozen=True)
class Question:
    """An image to ask about: its number and path, likely classes first to last, and whether it is asked again."""

    index: int
    path: str
    likely: Sequence[str]
    again: bool = False


def read_answers(file: PathLike, split: LabelSplit, paths: Dict[str, int]) -> Dict[int, Answer]:
    """Image number to answer, of a CSV file with the columns ``path`` and ``label``; others may be there.

    Labels are source classes, ``unknown`` or ``none of these``, and ``cannot tell``, in any case; an empty one is no answer.
    An error names the line.

    Args:
        file (str or Path): the file
        split (LabelSplit): the classes
        paths (dict): path of every target image to its number
    """
    labels = _labels(split)
    found: Dict[int, Answer] = {}
    lines: Dict[int, int] = {}
    with open_text(file) as stream:
        rows = csv.reader(stream)
        header = [name.strip().casefold() for name in next(rows, [])]
        if missing := [name for name in ("path", "label") if name not in header]:
            raise UserError(f"{file} has no column {' and no column '.join(missing)}: expected the header path,label")
        for row in rows:
            where = f"{file}, line {rows.line_num}"
            if not any(row):
                continue
            if len(row) != len(header):
                raise UserError(f"{where}: {len(row)} cells, the header has {len(header)}")
            cells = {name: unescape_formula(cell).strip() for name, cell in zip(header, row)}
            if not cells["label"]:
                continue
            if cells["path"] not in paths:
                raise UserError(f"{where}: {cells['path']!r} is no target image of this run: {_nearest(cells['path'], paths)}")
            index, answer = paths[cells["path"]], _answer(cells, labels, split, where)
            if index in found and found[index].label != answer.label:
                raise UserError(f"{where}: {cells['path']} has another label than in line {lines[index]}: expected one answer")
            found[index], lines[index] = answer, rows.line_num
    return found


def read_labels(given: Mapping[str, Optional[str]], split: LabelSplit, paths: Dict[str, int]) -> Dict[int, Answer]:
    """Image number to answer, of paths and labels as in a file; None is no answer."""
    labels, found = _labels(split), {}
    for path, label in given.items():
        if path not in paths:
            raise UserError(f"{path!r} is no target image of this run: {_nearest(path, paths)}")
        if label:
            found[paths[path]] = _answer({"label": str(label)}, labels, split, path)
    return found


def _labels(split: LabelSplit) -> Dict[str, int]:
    """Name to label; exact names go before those that differ in case."""
    labels = {name.casefold(): k for k, name in reversed([*enumerate(split.source_classes)])}
    labels |= {name: k for k, name in enumerate(split.source_classes)}
    return {UNKNOWN: split.unknown, "none of these": split.unknown, **labels}


def _nearest(path: str, paths: Dict[str, int]) -> str:
    return closest(path, [*paths][:2000])[:300]


def _answer(cells: Dict[str, str], labels: Dict[str, int], split: LabelSplit, where: str) -> Answer:
    name = cells["label"]
    label = labels.get(name, labels.get(name.casefold()))
    if label is None and name.casefold() != CANNOT_TELL:
        choices = (*split.source_classes, UNKNOWN, "none of these", CANNOT_TELL)
        raise UserError(f"{where}: unknown label {name!r}: {closest(name, choices)}")
    number = cells.get("round", "")
    return Answer(label, cells.get("confirmed") == "1", int(number) if number.isdecimal() else None)


def write_answers(file: PathLike, answers: Dict[int, Answer], split: LabelSplit, paths: Sequence[str]) -> None:
    """Write answers so that :func:`read_answers` reads them back."""
    rows: List[Sequence[object]] = []
    for index, answer in sorted(answers.items()):
        name = CANNOT_TELL if answer.label is None else split.label_names[answer.label]
        number = "" if answer.round is None else answer.round
        rows.append((escape_formula(paths[index]), escape_formula(name), int(answer.confirmed), number))
    write_rows(file, _ANSWERS, rows)


def write_questions(file: PathLike, questions: Sequence[Question], number: int) -> None:
    """Write questions with an empty column ``label`` to fill in; ``number`` is that of the round."""
    rows = [(escape_formula(q.path), "", escape_formula("; ".join(q.likely)), int(q.again), number) for q in questions]
    write_rows(file, _QUESTIONS, rows)


def read_questions(file: PathLike, paths: Dict[str, int]) -> Dict[int, bool]:
    """Image number to whether it is asked again; empty without the file."""
    if not Path(file).is_file():
        return {}
    with open_text(file) as stream:
        rows = list(csv.DictReader(stream))
    asked = {unescape_formula(row.get("path") or ""): row.get("again") == "1" for row in rows}
    return {paths[path]: again for path, again in asked.items() if path in paths}
