"""``suspects.csv``: one row per source image, the most suspicious label first; and exports of the labels.

Exports: two arrays in cleanlab's form, and a list file of corrected labels in tllib's form.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from tllib_ext.columns import Columns, class_names
from tllib_ext.errors import UserError
from tllib_ext.evaluation.arrays import class_labels, same_length
from tllib_ext.io import (
    INTEGER,
    NUMBER,
    TEXT,
    atomic_path,
    escape_formula,
    read_columns,
    unescape_formula,
    write_rows,
    write_text,
)
from tllib_ext.split import LabelSplit
from tllib_ext.typing import PathLike, Values

__all__ = ["COLUMNS", "Suspects", "read_suspects", "write_corrected_list", "write_suspects"]

COLUMNS = ("index", "path", "given", "suspicion", "suggested", "probability", "p_given", "loss", "visits")
#: further columns where there are frozen features: what kind of doubt, and the group of near-duplicates
DOUBT = ("kind", "group")
#: further columns where the true labels are known, that is, where the noise was simulated
TRUTH = ("clean", "is_wrong")


@dataclass(frozen=True, repr=False)
class Suspects(Columns):
    """The columns of ``suspects.csv``; classes are numbers, in rows and tables they have their names.

    ``clean`` is None where the true labels are not known, ``kind`` and ``group`` where there were no frozen features.
    """

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
    kind: Optional[np.ndarray] = None
    group: Optional[np.ndarray] = None
    names: Tuple[str, ...] = ()

    def columns(self) -> Dict[str, np.ndarray]:
        """The columns of ``suspects.csv``, without those that it does not have."""
        columns = {name: getattr(self, name) for name in COLUMNS + DOUBT + TRUTH if getattr(self, name) is not None}
        for name in columns.keys() & {"given", "suggested", "clean"}:
            columns[name] = class_names(columns[name], self.names)
        return columns

    @property
    def is_wrong(self) -> Optional[np.ndarray]:
        """Whether the given label is not the true one."""
        return None if self.clean is None else self.given != self.clean


def write_suspects(
    file: PathLike, paths: Sequence[str], given: Values, audit: Any, split: LabelSplit, clean: Optional[Values] = None
) -> None:
    r"""Write ``suspects.csv``, and ``pred_probs.npy`` and ``labels.npy`` in cleanlab's form beside it.

    ``pred_probs.npy`` holds the class probabilities that the suggestions come from, rows in list order (column
    ``index``) that sum to one, ``labels.npy`` the given labels. The probabilities are means over the visits of training,
    each taken before the gradient step.

    Args:
        file (str or Path): the CSV file
        paths (sequence of str): :math:`(N, )` the source images
        given: :math:`(N, )` their labels in 0..K-1, possibly wrong
        audit (LabelAudit or LabelIssues): what :func:`~tllib_ext.labels.audit.audit_labels` or
            :func:`~tllib_ext.labels.issues.find_label_issues` found; the latter knows no training, its ``visits`` are 0
        split (LabelSplit): the label sets
        clean (optional): :math:`(N, )` the true labels, known for simulated noise; K for an image of no class
    """
    given = class_labels("given", given, split.source_classes)
    columns = {"paths": np.asarray(paths, dtype=object), "given": given, "suspicion": audit.suspicion}
    if clean is not None:
        columns["clean"] = clean = class_labels("clean", clean, split.label_names)
    same_length(columns)
    suggested, place = audit.suggested, np.arange(len(given))
    trained = hasattr(audit, "loss")
    probs = audit.probs if trained else audit.pred_probs
    probability, p_given = (probs[place, suggested], probs[place, given]) if trained else (audit.probability, audit.p_given)
    loss = audit.loss if trained else -np.log(np.maximum(p_given, 1e-12))
    names = [escape_formula(name) for name in split.label_names]
    rows = []
    for i in np.argsort(-audit.suspicion, kind="stable"):
        row = [i, escape_formula(str(paths[i])), names[given[i]], float(audit.suspicion[i]), names[suggested[i]]]
        row += [float(probability[i]), float(p_given[i]), float(loss[i]), audit.visits[i] if trained else 0]
        row += [] if audit.kind is None else [audit.kind[i], audit.group[i]]
        rows.append(row + ([names[clean[i]], int(given[i] != clean[i])] if clean is not None else []))
    write_rows(file, COLUMNS + (() if audit.kind is None else DOUBT) + (TRUTH if clean is not None else ()), rows)
    arrays = {"labels.npy": given}
    if probs is not None:
        arrays["pred_probs.npy"] = (probs / probs.sum(1, keepdims=True)).astype(np.float32)
    for name, array in arrays.items():
        with atomic_path(Path(file).with_name(name)) as draft, open(draft, "wb") as stream:
            np.save(stream, array)


def write_corrected_list(file: PathLike, paths: Sequence[str], labels: Values) -> List[str]:
    """A list file as tllib reads it, one ``path label`` per line, with labels as class numbers.

    Returns:
        paths that such a file cannot hold, which are left out: with a line break, or a space at an end
    """
    rows = list(zip(map(str, paths), np.asarray(labels).tolist()))
    left_out = [path for path, _ in rows if path != path.strip() or "\n" in path or "\r" in path]
    excluded = set(left_out)
    write_text(file, "".join(f"{path} {label}\n" for path, label in rows if path not in excluded))
    return left_out


def read_suspects(file: PathLike, split: LabelSplit) -> Suspects:
    """Read what :func:`write_suspects` wrote, most suspicious first."""
    labels = {name: k for k, name in enumerate(split.label_names)}

    def label(cell: str) -> int:
        name = unescape_formula(cell)
        if name not in labels:
            raise UserError(f"unknown class {name!r}: this file is of another split")
        return labels[name]

    kinds = dict.fromkeys(COLUMNS, NUMBER) | dict.fromkeys(("given", "suggested", "clean"), (label, np.int64))
    columns = read_columns(
        file, {**kinds, "path": TEXT, "index": INTEGER, "visits": INTEGER, "kind": TEXT, "group": INTEGER}, COLUMNS
    )
    order = np.lexsort((columns["index"], -columns["suspicion"]))
    return Suspects(**{name: column[order] for name, column in columns.items()}, names=split.label_names)
