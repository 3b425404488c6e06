"""The files of a run folder that questions and answers need."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Dict, List, Mapping, Optional

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.evaluation.answers_file import Answer, read_answers
from tllib_ext.evaluation.files import Predictions, load_split, read_predictions
from tllib_ext.evaluation.random_sample import Sample, read_sample
from tllib_ext.split import LabelSplit
from tllib_ext.training.answer_space import Answered, AnswerSpace
from tllib_ext.typing import Record

__all__ = ["AnswerFiles", "read_object"]


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


def read_object(file: Path) -> Record:
    """A JSON object of a run folder."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a JSON object")
    return value
