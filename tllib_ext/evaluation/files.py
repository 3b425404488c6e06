r"""``predictions.csv``: one row per target image. Numbers read back bit for bit.

Columns: ``index,path,label,predicted,score,threshold,top1,p1,top2,p2,top3,p3``. ``label`` and ``predicted`` are class
names or ``unknown``, ``label`` is empty for an unlabelled image, ``threshold`` is empty for a method without one,
``top1`` is the closed-set argmax.

A spreadsheet runs a cell that begins with ``= + - @``, tab, CR or LF as a formula: such a name is written with one
``'`` before it, and so is one that begins with ``'``. Reading removes one leading ``'``.
"""

import json
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from tllib_ext import io
from tllib_ext.columns import Columns, class_names
from tllib_ext.errors import UserError, closest
from tllib_ext.evaluation.arrays import argmax, class_labels, integers, same_length, scores, to_numpy
from tllib_ext.evaluation.further import further_metrics
from tllib_ext.evaluation.openset import OpenSetReport, evaluate
from tllib_ext.split import LabelSplit
from tllib_ext.typing import PathLike, Values

__all__ = ["COLUMNS", "Predictions", "load_split", "make_predictions", "read_predictions", "write_predictions"]

COLUMNS = ("index", "path", "label", "predicted", "score", "threshold", "top1", "p1", "top2", "p2", "top3", "p3")
#: a further column after answers of a person: 1 for an image that is answered, which no metric counts
ANSWERED = "answered"
#: the columns that the metrics need
REQUIRED = ("index", "label", "predicted", "score", "top1")
UNKNOWN = "unknown"


@dataclass(frozen=True, repr=False)
class Predictions(Columns):
    r"""The columns of a predictions file as arrays, class names as labels of the split; rows and tables have the names.

    Shape:
        - index, label, predicted: :math:`(N, )`, integers; ``label`` has a meaning only where ``labelled``, which leaves out
          images that a person has answered
        - score, threshold: :math:`(N, )`; threshold NaN where the file has none
        - top, top_probs: :math:`(N, \min(3, K))`, most probable source classes first; :math:`(N, 1)` and NaN if the
          file has only ``top1``
    """

    index: np.ndarray
    path: List[str]
    label: np.ndarray
    labelled: np.ndarray
    predicted: np.ndarray
    score: np.ndarray
    threshold: np.ndarray
    top: np.ndarray
    top_probs: np.ndarray
    names: Tuple[str, ...] = ()

    def columns(self) -> Dict[str, np.ndarray]:
        """The columns of ``predictions.csv``, without the label if there is none."""
        columns = {"index": self.index, "path": np.array(self.path, dtype=object)}
        if self.labelled.any():
            columns["label"] = class_names(np.where(self.labelled, self.label, len(self.names)), self.names)
        columns.update(predicted=class_names(self.predicted, self.names), score=self.score, threshold=self.threshold)
        for rank in range(self.top.shape[1]):
            columns[f"top{rank + 1}"] = class_names(self.top[:, rank], self.names)
            columns[f"p{rank + 1}"] = self.top_probs[:, rank]
        return columns

    def evaluate(self, split: LabelSplit, threshold: Optional[float] = None) -> OpenSetReport:
        """Metrics of the labelled rows; with ``threshold``, of the predictions ``score > threshold`` instead."""
        label, predicted, score, closed = self._labelled(split, threshold)
        return evaluate(label, predicted, score, split, closed_pred=closed)

    def further(self, split: LabelSplit, threshold: Optional[float] = None) -> Dict[str, Optional[float]]:
        """The further metrics of the same rows, as far as a file without features has them."""
        label, predicted, score, closed = self._labelled(split, threshold)
        confidence = self.top_probs[self.labelled, 0]
        return further_metrics(label, predicted, score, split, closed, None if np.isnan(confidence).any() else confidence)

    def _labelled(self, split: LabelSplit, threshold: Optional[float]) -> List[np.ndarray]:
        if not self.labelled.any():
            raise UserError("no row has a label: there is nothing to compare the predictions with")
        closed, predicted = self.top[:, 0], self.predicted
        if threshold is not None:
            if np.isnan(threshold):
                raise UserError("threshold: found NaN, expected a number")
            predicted = np.where(self.score > threshold, split.unknown, closed)
        return [column[self.labelled] for column in (self.label, predicted, self.score, closed)]


def write_predictions(
    file: PathLike, prediction: Any, index: Values, paths: Sequence[str], split: LabelSplit,
    threshold: Optional[float] = None, labels: Optional[Values] = None, answered: Optional[np.ndarray] = None,
) -> None:  # fmt: skip
    r"""Write a :class:`~tllib_ext.methods.base.Prediction` of N images, in the order of ``index``, atomically.

    Args:
        file (str or Path): the CSV file
        prediction: ``probs`` (N, K), ``score`` (N, ), ``unknown`` (N, )
        index: (N, ) numbers of the images, each once
        paths (sequence of str): (N, ) files of the images
        split (LabelSplit): the label sets
        threshold (float or array, optional): threshold on the score
        labels (optional): (N, ) in 0..K; None for an unlabelled target
        answered (numpy.ndarray, optional): (N, ) bool, the images that a person has labelled: a last column, 0 or 1
    """
    _check_names(split)
    probs, names = to_numpy(prediction.probs), [io.escape_formula(name) for name in split.label_names]
    columns = {
        "index": integers("index", index),
        "paths": np.array([io.escape_formula(str(path)) for path in paths], dtype=object),
        "score": scores(prediction.score),
        "unknown": to_numpy(prediction.unknown).astype(bool),
        "closed": argmax(probs, split),
    }
    if labels is not None:
        columns["labels"] = class_labels("labels", labels, split.label_names)
    same_length(columns)
    predicted = np.where(columns["unknown"], split.unknown, columns["closed"])
    order = np.argsort(columns["index"], kind="stable")
    _check_unique(columns["index"][order], file)
    cuts = np.broadcast_to(np.nan if threshold is None else to_numpy(threshold), len(order)).astype(np.float64)

    def text(numbers: np.ndarray) -> List[str]:
        return [names[k] for k in numbers]

    def lines() -> Iterator[Sequence[object]]:
        for start in range(0, len(order), io.CHUNK):
            rows = order[start : start + io.CHUNK]
            blank = [""] * len(rows)
            # Stable, so that top1 is the argmax of equal probabilities too.
            top = np.argsort(-probs[rows], axis=1, kind="stable")[:, :3]
            best = np.take_along_axis(probs[rows], top, 1).astype(np.float64)
            parts = [columns[name][rows].tolist() for name in ("index", "paths")]
            parts += [text(columns["labels"][rows]) if labels is not None else blank, text(predicted[rows])]
            parts += [columns["score"][rows].tolist(), ["" if t != t else t for t in cuts[rows].tolist()]]
            for rank in range(3):
                parts += [text(top[:, rank]), best[:, rank].tolist()] if rank < top.shape[1] else [blank, blank]
            parts += [] if answered is None else [answered[rows].astype(int).tolist()]
            yield from zip(*parts)

    io.write_rows(file, COLUMNS if answered is None else (*COLUMNS, ANSWERED), lines())


def make_predictions(prediction: Any, paths: Sequence[str], split: LabelSplit, threshold: Optional[float] = None) -> Predictions:
    """What :func:`read_predictions` reads from a file of these predictions of N images without labels."""
    probs, unknown = to_numpy(prediction.probs), to_numpy(prediction.unknown).astype(bool)
    n = len(probs)
    top = np.argsort(-probs, axis=1, kind="stable")[:, :3]
    return Predictions(
        index=np.arange(n),
        path=list(paths),
        label=np.full(n, len(split.label_names)),
        labelled=np.zeros(n, dtype=bool),
        predicted=np.where(unknown, split.unknown, top[:, 0]),
        score=scores(prediction.score),
        threshold=np.full(n, np.nan if threshold is None else threshold),
        top=top,
        top_probs=np.take_along_axis(probs, top, 1).astype(np.float64),
        names=split.label_names,
    )


def read_predictions(file: PathLike, split: LabelSplit, only_metrics: bool = False) -> Predictions:
    """Read a predictions file; extra columns and the order of columns do not matter.

    A target-private class in ``label`` counts as unknown. Bad input is a :class:`UserError` that names the row
    (the first row under the header is row 1). ``only_metrics`` skips the columns that no metric needs, which halves the
    time.
    """
    _check_names(split)
    source = {name: k for k, name in enumerate(split.source_classes)}
    known = {UNKNOWN: split.unknown}
    names = split.shared + split.target_private
    known.update({name: k for name in names if (k := split.target_index(name)) is not None})
    ranks = range(1, min(3, split.num_source) + 1)
    converters: Dict[str, io.Converter] = {
        "index": io.INTEGER,
        "path": io.TEXT,
        # An unlabelled row gets a label out of range, which no metric accepts.
        "label": (_Names({**known, "": len(split.label_names)}, split).__getitem__, np.int64),
        "predicted": (_Names({**source, UNKNOWN: split.unknown}, split).__getitem__, np.int64),
        "score": io.NUMBER,
        "threshold": io.OPTIONAL_NUMBER,
    }
    for rank in ranks:
        converters[f"top{rank}"] = (_Names(source, split).__getitem__, np.int64)
        converters[f"p{rank}"] = io.OPTIONAL_NUMBER
    if only_metrics:
        converters = {name: converters[name] for name in REQUIRED}
    converters[ANSWERED] = io.INTEGER
    columns = io.read_columns(file, converters, REQUIRED)
    bad = np.isnan(columns["score"])
    if bad.any():
        raise UserError(f"{file}, score, row {bad.argmax() + 1}: found NaN, expected a number")
    _check_unique(np.sort(columns["index"]), file)
    size = len(columns["index"])
    if not all(f"top{rank}" in columns for rank in ranks):
        ranks = range(1, 2)
    blank = np.full(size, np.nan)
    return Predictions(
        index=columns["index"],
        path=columns["path"].tolist() if "path" in columns else [""] * size,
        label=columns["label"],
        labelled=(columns["label"] < len(split.label_names)) & (columns.get(ANSWERED, np.zeros(size)) == 0),
        predicted=columns["predicted"],
        score=columns["score"],
        threshold=columns.get("threshold", blank),
        top=np.stack([columns[f"top{rank}"] for rank in ranks], 1),
        top_probs=np.stack([columns.get(f"p{rank}", blank) for rank in ranks], 1),
        names=split.label_names,
    )


def load_split(file: PathLike) -> LabelSplit:
    """The label sets of a run: the key ``split`` of its ``config.json``, as :meth:`LabelSplit.to_dict` gives them."""
    with io.open_text(file) as stream:
        try:
            parts = json.load(stream)["split"]
            if not all(isinstance(names, list) for names in parts.values()):
                raise TypeError
            return LabelSplit(**parts)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            form = '"split": {"shared": […], "source_private": […], "target_private": […]}'
            raise UserError(f"{file} has no label sets: expected JSON with {form}") from None


class _Names(dict):
    """Cell -> label. Each distinct cell is parsed once, so that a row costs one look-up."""

    def __init__(self, labels: Dict[str, int], split: LabelSplit):
        super().__init__()
        self.labels, self.split = labels, split

    def __missing__(self, cell: str) -> int:
        name = io.unescape_formula(cell)
        if name not in self.labels:
            if name in self.split.source_private:
                raise UserError(f"{name!r} is a source-private class, which no target image has: is this the right split?")
            raise UserError(f"unknown class {name!r}: {closest(name, filter(None, self.labels))}")
        self[cell] = self.labels[name]
        return self[cell]


def _check_names(split: LabelSplit) -> None:
    for name in (UNKNOWN, ""):
        if name in split.source_classes:
            raise UserError(f"a source class is called {name!r}, which means something else in a predictions file: rename it")


def _check_unique(ordered: np.ndarray, file: PathLike) -> None:
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(again):
        raise UserError(f"{file}: index {again[0]} stands twice, expected one row per image")
