r"""The open-set evaluator: a pure function of arrays, and an accumulator over batches.

Recall :math:`a_k = M_{kk} / \sum_j M_{kj}` of the confusion matrix :math:`M` is the base of every class mean. A shared
image predicted as a source-private class is an error, an unknown image predicted as any known class is an error, and a
class without target images has no recall: the report names it and leaves it out of the means.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from tllib_ext.errors import UserError, visible
from tllib_ext.evaluation.arrays import argmax, check_possible, class_labels, count_once, integers, same_length, scores, to_numpy
from tllib_ext.evaluation.curves import confusion, detection, oscr
from tllib_ext.split import LabelSplit
from tllib_ext.typing import Record, Values

__all__ = ["DEFINITIONS", "ClassRecall", "OpenSetEvaluator", "OpenSetReport", "evaluate"]

#: metric -> its definition in words, for legends; the order of every table.
DEFINITIONS: Dict[str, str] = {
    "os": "OS: mean recall over the shared classes and unknown",
    "os_star": "OS*: mean recall over the shared classes",
    "unk": "UNK: share of the unknown images called unknown",
    "h_score": "H-score: 2 OS* UNK / (OS* + UNK), OS* being the class mean",
    "accuracy": "share of all images labelled right, unknown being one label",
    "closed_accuracy": "OS* with rejection switched off, argmax over all source classes",
    "auroc": "area under the ROC curve of the score, unknown positive",
    "aupr_unknown": "average precision of the score, unknown positive",
    "aupr_known": "average precision of the negated score, known positive",
    "fpr_known_at_95_unknown_recall": "share of the known images called unknown where 95 % of the unknown are found",
    "oscr": "area under: known images accepted and right, over unknown images accepted",
}


class ClassRecall(NamedTuple):
    """Recall of one class (None without images) and its number of target images."""

    recall: Optional[float]
    count: int  # type: ignore[assignment]  # replaces the method of tuple


@dataclass(frozen=True)
class OpenSetReport:
    r"""Every open-set metric of one evaluation, fractions in 0..1, None where a metric is not defined.

    With :math:`C` the shared classes that have target images, :math:`K` the unknown label and :math:`a_k` the recalls

    .. math::
        \mathrm{OS^*} = \frac{1}{|C|}\sum_{k \in C} a_k, \quad \mathrm{UNK} = a_K, \quad
        \mathrm{OS} = \frac{|C|\,\mathrm{OS^*} + \mathrm{UNK}}{|C| + 1}, \quad
        \mathrm{H} = \frac{2\,\mathrm{OS^*}\,\mathrm{UNK}}{\mathrm{OS^*} + \mathrm{UNK}}.

    Without unknown images OS = OS*, and UNK, H-score and the score's areas are None; without shared images OS = UNK.
    :data:`DEFINITIONS` has every metric in words, :mod:`~tllib_ext.evaluation.curves` the equations of the areas.
    """

    os: float
    os_star: Optional[float]
    unk: Optional[float]
    h_score: Optional[float]
    accuracy: float
    closed_accuracy: Optional[float]
    auroc: Optional[float]
    aupr_unknown: Optional[float]
    aupr_known: Optional[float]
    fpr_known_at_95_unknown_recall: Optional[float]
    oscr: Optional[float]
    num_images: int
    scenario: str
    #: shared classes and ``"unknown"`` by name
    per_class: Dict[str, ClassRecall]
    #: shared classes without any target image, which are in no mean
    empty_classes: Tuple[str, ...]
    #: names of the rows and columns of ``confusion``
    label_names: Tuple[str, ...] = field(repr=False)
    confusion: np.ndarray = field(repr=False, compare=False)

    def flat(self) -> Record:
        """The scalars, for one line of JSON."""
        return {name: getattr(self, name) for name in (*DEFINITIONS, "num_images", "scenario")}

    def to_dict(self) -> Record:
        """Everything, as plain JSON values."""
        return {
            **self.flat(),
            "per_class": {name: value._asdict() for name, value in self.per_class.items()},
            "empty_classes": list(self.empty_classes),
            "label_names": list(self.label_names),
            "confusion": self.confusion.tolist(),
        }

    def confused_with(self, name: str) -> List[Tuple[str, int]]:
        """The two labels most often predicted for images of a class instead of its own, with their counts."""
        row = self.confusion[self.label_names.index(name)]
        ordered = [(self.label_names[k], int(row[k])) for k in np.argsort(-row, kind="stable") if row[k]]
        return [(other, n) for other, n in ordered if other != name][:2]

    def table(self) -> str:
        """Recall by class and the most frequent confusions, then every metric with its definition."""
        from prettytable import PrettyTable

        classes = PrettyTable(["class", "images", "recall", "mostly confused with"], align="l")
        for name, (recall, count) in self.per_class.items():
            taken = ", ".join(f"{visible(other)} {n / count:.3f}" for other, n in self.confused_with(name))
            classes.add_row([visible(name), count, _number(recall, "no images"), taken])
        metrics = PrettyTable(["metric", "value", "definition"], align="l")
        metrics.add_rows([[name, _number(getattr(self, name)), text] for name, text in DEFINITIONS.items()])
        lines = [classes.get_string(), metrics.get_string(), f"{self.scenario} label sets, {self.num_images} images"]
        if self.empty_classes:
            empty = ", ".join(map(visible, self.empty_classes))
            lines.append(f"shared classes without a target image, left out of every mean: {empty}")
        return "\n".join(lines)


def evaluate(
    labels: Values,
    predicted: Values,
    score: Values,
    split: LabelSplit,
    probs: Optional[Values] = None,
    closed_pred: Optional[Values] = None,
    index: Optional[Values] = None,
) -> OpenSetReport:
    r"""All metrics from arrays or tensors, of any code.

    Args:
        split (LabelSplit): the label sets
        probs (optional): :math:`(N, K)` class probabilities
        closed_pred (optional): :math:`(N, )` their argmax, instead of ``probs``; without both, closed accuracy and
            OSCR are None
        index (optional): :math:`(N, )` the image of each row; a repeated image (sharded evaluation pads) counts once if
            its rows are equal, scores up to rounding, and is an error otherwise

    Shape:
        - labels: :math:`(N, )`, integers: the shared classes' labels and ``split.unknown``
        - predicted: :math:`(N, )`, integers in 0..K, K = unknown
        - score: :math:`(N, )`, high = unknown

    Examples::

        >>> split = LabelSplit(["ant", "bee"], ["cat"], ["dog"])
        >>> report = evaluate([0, 0, 1, 3], [0, 3, 1, 3], [0.1, 0.8, 0.2, 0.9], split)
        >>> report.os_star, report.unk, round(report.os, 4), report.auroc
        (0.75, 1.0, 0.8333, 1.0)
    """
    columns = {
        "labels": class_labels("labels", labels, split.label_names),
        "predicted": class_labels("predicted", predicted, split.label_names),
        "score": scores(score),
    }
    if probs is not None and closed_pred is not None:
        raise UserError("give probs or closed_pred, not both")
    if probs is not None:
        closed_pred = argmax(probs, split)
    if closed_pred is not None:
        columns["closed_pred"] = class_labels("closed_pred", closed_pred, split.source_classes)
    if index is not None:
        columns["index"] = integers("index", index)
    same_length(columns)
    if not len(columns["labels"]):
        raise UserError("no target image to evaluate")
    if index is not None:
        columns = count_once(columns)
    check_possible(columns["labels"], split)
    return _report(columns["labels"], columns["predicted"], columns["score"], columns.get("closed_pred"), split)


class OpenSetEvaluator:
    r"""Accumulates predictions batch by batch; the report does not depend on the batches, their order or the shards.

    Args:
        split (LabelSplit): the label sets

    Examples::

        >>> from tllib_ext.methods.base import Prediction
        >>> evaluator = OpenSetEvaluator(LabelSplit(["ant", "bee"], [], ["cat"]))
        >>> probs = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
        >>> prediction = Prediction(probs, np.array([0.3, 0.6, 0.7]), np.array([False, False, True]))
        >>> evaluator.update(prediction, labels=[0, 1, 2], index=[0, 1, 2])
        >>> evaluator.compute().h_score
        1.0
    """

    def __init__(self, split: LabelSplit):
        self.split = split
        self.reset()

    def reset(self) -> None:
        """Remove all predictions."""
        self._chunks: List[Dict[str, np.ndarray]] = []

    def update(self, prediction: Any, labels: Values, index: Values) -> None:
        """Add a :class:`~tllib_ext.methods.base.Prediction` of some images, their labels in 0..K and their indices."""
        chunk = {
            "labels": class_labels("labels", labels, self.split.label_names),
            "closed_pred": argmax(prediction.probs, self.split),
            "unknown": to_numpy(prediction.unknown).astype(bool),
            "score": scores(prediction.score),
            "index": integers("index", index),
        }
        same_length(chunk)
        chunk["predicted"] = np.where(chunk.pop("unknown"), self.split.unknown, chunk["closed_pred"])
        self._chunks.append(chunk)

    def state(self) -> Dict[str, np.ndarray]:
        """All predictions as five flat arrays, to send to another process (``all_gather_object``)."""
        empty: Dict[str, np.ndarray] = dict.fromkeys(("labels", "predicted", "closed_pred", "index"), np.empty(0, np.int64))
        empty["score"] = np.empty(0)
        return {name: np.concatenate([chunk[name] for chunk in (empty, *self._chunks)]) for name in empty}

    def merge(self, other: Union["OpenSetEvaluator", Dict[str, np.ndarray]]) -> None:
        """Add the predictions of another evaluator, or its :meth:`state`."""
        if isinstance(other, OpenSetEvaluator):
            if other.split != self.split:
                raise UserError(f"cannot merge evaluations of different label sets: {self.split} and {other.split}")
            other = other.state()
        self._chunks.append(dict(other))

    def compute(self) -> OpenSetReport:
        """The report of all predictions since :meth:`reset`."""
        return evaluate(split=self.split, **self.state())


def _report(
    labels: np.ndarray, predicted: np.ndarray, score: np.ndarray, closed_pred: Optional[np.ndarray], split: LabelSplit
) -> OpenSetReport:
    matrix = confusion(labels, predicted, split)
    matrix.flags.writeable = False
    counts = matrix.sum(1)
    present = [k for k in split.shared_labels if counts[k]]
    has_unknown = bool(counts[split.unknown])
    recall = {k: float(matrix[k, k] / counts[k]) for k in (*present, *[split.unknown] * has_unknown)}
    os_star = float(np.mean([recall[k] for k in present])) if present else None
    unk = recall.get(split.unknown)
    h_score = None
    if os_star is not None and unk is not None:
        h_score = 2 * os_star * unk / (os_star + unk) if os_star + unk else 0.0
    closed_accuracy = None
    if closed_pred is not None and present:
        right = np.bincount(labels[closed_pred == labels], minlength=len(counts))
        closed_accuracy = float(np.mean(right[present] / counts[present]))
    shown = [*split.shared_labels, *[split.unknown] * bool(split.target_private)]
    return OpenSetReport(
        os=float(np.mean(list(recall.values()))),
        os_star=os_star,
        unk=unk,
        h_score=h_score,
        accuracy=float(np.trace(matrix) / len(labels)),
        closed_accuracy=closed_accuracy,
        **detection(labels, score, split),
        oscr=oscr(labels, closed_pred, score, split) if closed_pred is not None else None,
        num_images=len(labels),
        scenario=split.scenario,
        per_class={split.label_names[k]: ClassRecall(recall.get(k), int(counts[k])) for k in shown},
        empty_classes=tuple(split.label_names[k] for k in split.shared_labels if not counts[k]),
        label_names=split.label_names,
        confusion=matrix,
    )


def _number(value: Optional[float], missing: str = "not defined") -> str:
    return missing if value is None else f"{value:.4f}"
