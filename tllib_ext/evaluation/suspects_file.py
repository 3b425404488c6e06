"""``suspects.csv``: one row per source image, the most suspicious label first; and two arrays in cleanlab's form."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.evaluation.arrays import class_labels, same_length
from tllib_ext.io import INTEGER, NUMBER, TEXT, atomic_path, escape_formula, read_columns, unescape_formula, write_rows
from tllib_ext.split import LabelSplit
from tllib_ext.typing import PathLike, Values

__all__ = ["COLUMNS", "Suspects", "read_suspects", "write_suspects"]

COLUMNS = ("index", "path", "given", "suspicion", "suggested", "probability", "p_given", "loss", "visits")
#: further columns where the true labels are known, that is, where the noise was simulated
TRUTH = ("clean", "is_wrong")


@dataclass(frozen=True)
class Suspects:
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
        audit (LabelAudit): what :func:`~tllib_ext.labels.audit.audit_labels` found
        split (LabelSplit): the label sets
        clean (optional): :math:`(N, )` the true labels, known for simulated noise; K for an image of no class
    """
    given = class_labels("given", given, split.source_classes)
    columns = {"paths": np.asarray(paths, dtype=object), "given": given, "suspicion": audit.suspicion}
    if clean is not None:
        columns["clean"] = clean = class_labels("clean", clean, split.label_names)
    same_length(columns)
    probs, suggested = audit.probs, audit.suggested
    names = [escape_formula(name) for name in split.label_names]
    rows = []
    for i in np.argsort(-audit.suspicion, kind="stable"):
        row = [i, escape_formula(str(paths[i])), names[given[i]], float(audit.suspicion[i]), names[suggested[i]]]
        row += [float(p) for p in (probs[i, suggested[i]], probs[i, given[i]], audit.loss[i])] + [audit.visits[i]]
        rows.append(row + ([names[clean[i]], int(given[i] != clean[i])] if clean is not None else []))
    write_rows(file, COLUMNS + (TRUTH if clean is not None else ()), rows)
    arrays = {"pred_probs.npy": (probs / probs.sum(1, keepdims=True)).astype(np.float32), "labels.npy": given}
    for name, array in arrays.items():
        with atomic_path(Path(file).with_name(name)) as draft, open(draft, "wb") as stream:
            np.save(stream, array)


def read_suspects(file: PathLike, split: LabelSplit) -> Suspects:
    """Read what :func:`write_suspects` wrote, most suspicious first."""
    labels = {name: k for k, name in enumerate(split.label_names)}

    def label(cell: str) -> int:
        name = unescape_formula(cell)
        if name not in labels:
            raise UserError(f"unknown class {name!r}: this file is of another split")
        return labels[name]

    kinds = dict.fromkeys(COLUMNS, NUMBER) | dict.fromkeys(("given", "suggested", "clean"), (label, np.int64))
    columns = read_columns(file, {**kinds, "path": TEXT, "index": INTEGER, "visits": INTEGER}, COLUMNS)
    order = np.lexsort((columns["index"], -columns["suspicion"]))
    return Suspects(**{name: column[order] for name, column in columns.items()})
