r"""``suspects.csv``: which source labels look wrong, the most suspicious first.

Every visit of training left two traces of sample i (:class:`~tllib_ext.training.audit.Audit`): its joint loss, both
heads' cross entropy and their divergence, and the heads' mean probabilities. Averaged over the visits they are
:math:`\bar L_i` and :math:`\bar p_i`; :math:`e^{-\bar L_i}` is the probability with which the heads agreed on the given
label :math:`\tilde y_i`. The suspicion

.. math::
    s_i = \max_{j \ne \tilde y_i} \bar p_{ij} - e^{-\bar L_i} \quad \in (-1, 1)

is above zero where another class fits better than the given label. A label model (posterior :math:`r_i` over classes,
:mod:`tllib_ext.labels`) sees what no single sample shows, that one class is often called by one other name; with it
the suspicion is the mean of :math:`s_i` and :math:`\max_{j \ne \tilde y_i} r_{ij} - r_{i \tilde y_i}`.

A sample that training never drew is judged by what the trained method says of it (``fallback``): one reading instead of
a mean, marked by ``visits`` 0.
"""

import csv
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence, Union

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.evaluation.arrays import class_labels, same_length, to_numpy
from tllib_ext.evaluation.csvfile import atomic_text, guard, read_columns, unguard
from tllib_ext.files import whole_file
from tllib_ext.vision.datasets.split import LabelSplit

__all__ = ["COLUMNS", "Beliefs", "Suspects", "beliefs", "detection_quality", "read_suspects", "suspicion", "write_suspects"]

COLUMNS = ("index", "path", "given", "suspicion", "suggested", "probability", "p_given", "loss", "visits")
#: further columns where the true labels are known, that is, where the noise was simulated
TRUTH = ("clean", "is_wrong")


class Beliefs(NamedTuple):
    r"""What training leaves behind about every source sample, in list order.

    Shape:
        - loss: :math:`(N, )` mean joint loss; probs: :math:`(N, K)` mean probabilities; visits: :math:`(N, )`
    """

    loss: np.ndarray
    probs: np.ndarray
    visits: np.ndarray


class Suspects(NamedTuple):
    """The columns of ``suspects.csv``; ``clean`` is None where the true labels are not known."""

    index: np.ndarray
    path: np.ndarray
    given: np.ndarray
    suspicion: np.ndarray
    suggested: np.ndarray
    probability: np.ndarray
    p_given: np.ndarray
    loss: np.ndarray
    visits: np.ndarray
    clean: Optional[np.ndarray] = None

    @property
    def is_wrong(self) -> Optional[np.ndarray]:
        """Whether the given label is not the true one."""
        return None if self.clean is None else self.given != self.clean


def beliefs(audit: Any, given: np.ndarray, fallback: Any = None) -> Beliefs:
    r"""The audit's means, with the gaps filled: ``fallback`` are probabilities :math:`(N, K)` for samples never drawn.

    Without ``fallback`` a gap is filled by the uniform distribution, "nothing is known".

    Examples::

        >>> import torch; from tllib_ext.training.audit import Audit
        >>> audit = Audit(2, 2, torch.device("cpu"))
        >>> audit.add(torch.tensor([0]), torch.tensor([0.5]), [torch.zeros(1, 2)])
        >>> beliefs(audit, np.array([0, 1]), [[0.5, 0.5], [0.25, 0.75]]).loss.round(4).tolist()
        [0.5, 0.2877]
    """
    loss, probs, visits = (to_numpy(value).astype(np.float64) for value in (audit.loss, audit.probs, audit.visits))
    gaps = (visits == 0) | np.isnan(loss) | ~np.isfinite(probs).all(1)  # never drawn, or drawn while training diverged
    if gaps.any():
        filled = np.full_like(probs, 1 / probs.shape[1])
        if fallback is not None:
            told = to_numpy(fallback).astype(np.float64)
            filled = np.where(np.isfinite(told).all(1, keepdims=True), told, filled)
        probs = np.where(gaps[:, None], filled, probs)
        own = np.take_along_axis(probs, given[:, None], 1)[:, 0]
        loss = np.where(gaps, -np.log(np.maximum(own, 1e-12)), loss)
    return Beliefs(loss, probs / probs.sum(1, keepdims=True), visits.astype(np.int64))


def suspicion(loss: np.ndarray, probs: np.ndarray, given: np.ndarray, posterior: Optional[np.ndarray] = None) -> np.ndarray:
    r"""The score of the head of this file, in (-1, 1); above 0 another class fits better than the given one.

    Shape:
        - loss, given: :math:`(N, )`; probs, posterior: :math:`(N, K)`

    Examples::

        >>> suspicion(np.array([0.0, 3.0]), np.array([[1.0, 0.0], [0.9, 0.1]]), np.array([0, 1])).round(3).tolist()
        [-1.0, 0.85]
    """
    score = _best_other(probs, given) - np.exp(-loss)
    if posterior is None:
        return score
    own = np.take_along_axis(posterior, given[:, None], 1)[:, 0]
    return (score + _best_other(posterior, given) - own) / 2


def _best_other(probs: np.ndarray, given: np.ndarray) -> np.ndarray:
    others = probs.copy()
    np.put_along_axis(others, given[:, None], -np.inf, 1)
    return others.max(1)


def detection_quality(score: np.ndarray, wrong: np.ndarray) -> Dict[str, Optional[float]]:
    """AUROC of the score, and the share of wrong labels among the n most suspicious, n being the number of wrong ones.

    Examples::

        >>> detection_quality(np.array([0.9, 0.1, 0.8, 0.2]), np.array([True, False, False, True]))
        {'suspects_auroc': 0.75, 'suspects_precision': 0.5}
    """
    if wrong.all() or not wrong.any():
        return {"suspects_auroc": None, "suspects_precision": None}
    from sklearn.metrics import roc_auc_score

    first = np.argsort(-score, kind="stable")[: np.count_nonzero(wrong)]
    return {"suspects_auroc": float(roc_auc_score(wrong, score)), "suspects_precision": float(wrong[first].mean())}


def write_suspects(
    file: Union[str, Path],
    paths: Sequence[str],
    given: Any,
    audit: Any,
    split: LabelSplit,
    clean: Any = None,
    label_model: Any = None,
    fallback: Any = None,
) -> Dict[str, Optional[float]]:
    r"""Write ``suspects.csv``, and ``pred_probs.npy`` and ``labels.npy`` in cleanlab's form beside it.

    ``pred_probs.npy`` holds the class probabilities that the suggestions come from, rows in list order (column
    ``index``) that sum to one, ``labels.npy`` the given labels. They are means over training visits, each read before
    its step learned from it.

    Args:
        file (str or Path): the CSV file
        paths (sequence of str): :math:`(N, )` the source images
        given: :math:`(N, )` their labels in 0..K-1, possibly wrong
        audit: has ``loss``, ``probs`` and ``visits`` (:class:`~tllib_ext.training.audit.Audit`)
        split (LabelSplit): the label sets
        clean (optional): :math:`(N, )` the true labels, known for simulated noise
        label_model (optional): has ``responsibilities`` :math:`(N, K)` (:class:`~tllib_ext.labels.LabelModel`)
        fallback (optional): :math:`(N, K)` probabilities of the trained method, for samples never drawn

    Returns:
        ``suspects_auroc``, ``suspects_precision`` (at the noise rate) and ``suggestion_accuracy``, the share of wrong
        labels whose suggestion is right; empty where ``clean`` is not known
    """
    given = class_labels("given", given, split.source_classes)
    known = beliefs(audit, given, fallback)
    columns = {"paths": np.asarray(paths, dtype=object), "given": given, "loss": known.loss}
    if clean is not None:
        columns["clean"] = clean = class_labels("clean", clean, split.source_classes)
    same_length(columns)
    posterior = None if label_model is None else to_numpy(label_model.responsibilities).astype(np.float64)
    if posterior is not None and (np.take_along_axis(posterior, given[:, None], 1) == 1).all():
        posterior = None  # it saw no evidence of noise and believes every label: that tells none from another
    score = suspicion(known.loss, known.probs, given, posterior)
    probs = known.probs if posterior is None else (known.probs + posterior) / 2
    rows = np.arange(len(given))
    suggested = np.where(probs[rows, given] >= probs.max(1), given, probs.argmax(1))
    order = np.argsort(-score, kind="stable")
    names = [guard(name) for name in split.source_classes]
    with atomic_text(file) as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS + (TRUTH if clean is not None else ()))
        for i in order:
            row = [i, guard(str(paths[i])), names[given[i]], float(score[i]), names[suggested[i]]]
            row += [float(p) for p in (probs[i, suggested[i]], probs[i, given[i]], known.loss[i])] + [known.visits[i]]
            writer.writerow(row + ([names[clean[i]], int(given[i] != clean[i])] if clean is not None else []))
    folder = Path(file).parent
    _save(folder / "pred_probs.npy", (probs / probs.sum(1, keepdims=True)).astype(np.float32))
    _save(folder / "labels.npy", given)
    if clean is None:
        return {}
    wrong = given != clean
    right = float((suggested == clean)[wrong].mean()) if wrong.any() else None
    return {**detection_quality(score, wrong), "suggestion_accuracy": right}


def _save(file: Path, array: np.ndarray) -> None:
    with whole_file(file) as draft, open(draft, "wb") as stream:
        np.save(stream, array)


def read_suspects(file: Union[str, Path], split: LabelSplit) -> Suspects:
    """Read what :func:`write_suspects` wrote, most suspicious first."""
    labels = {name: k for k, name in enumerate(split.source_classes)}

    def label(cell: str) -> int:
        name = unguard(cell)
        if name not in labels:
            raise UserError(f"unknown class {name!r}: this file is of another split")
        return labels[name]

    numbers = {name: (float, np.float64) for name in ("suspicion", "probability", "p_given", "loss")}
    classes = {name: (label, np.int64) for name in ("given", "suggested", "clean")}
    counts = {name: (int, np.int64) for name in ("index", "visits")}
    columns = read_columns(file, {"path": (unguard, object), **numbers, **classes, **counts}, COLUMNS)
    order = np.lexsort((columns["index"], -columns["suspicion"]))
    return Suspects(**{name: column[order] for name, column in columns.items()})
