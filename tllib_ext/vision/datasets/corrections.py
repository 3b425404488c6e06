"""Which label an image had before it was moved: a record in the data folder, so that later estimates know of corrections."""

import os
from pathlib import Path
from typing import Dict, Optional, Sequence, Tuple

import numpy as np

from tllib_ext.io import TEXT, escape_formula, read_columns, write_rows
from tllib_ext.typing import PathLike
from tllib_ext.vision.datasets.universal import UniversalView

__all__ = ["RECORD", "labels_before", "record_moves"]

#: hidden, in the folder of the class folders; columns path (now, relative) and given (the class folder before)
RECORD = ".labels_before.csv"


def record_moves(root: Path, moves: Sequence[Tuple[Path, Path]]) -> None:
    """Add files that were moved below ``root`` to its record; one that was moved before keeps its first class."""
    before = _read(root)
    for old, new in moves:
        past, now = old.relative_to(root), new.relative_to(root)
        before[str(now)] = before.pop(str(past), past.parts[0])
    rows = [(path, given) for path, given in sorted(before.items()) if Path(path).parts[0] != given]
    if rows:
        write_rows(root / RECORD, ("path", "given"), (tuple(map(escape_formula, row)) for row in rows))
    else:
        (root / RECORD).unlink(missing_ok=True)


def labels_before(view: UniversalView, root: Optional[PathLike]) -> Optional[np.ndarray]:
    """The labels of a source view before images were moved, :math:`(N,)`; None if none was."""
    before = _read(Path(root)) if root is not None else {}
    if not before or view.targets is None:
        return None
    labels = view.targets.copy()
    for i, path in enumerate(view.paths):
        given = before.get(os.path.relpath(path, root))
        number = None if given is None else view.split.source_index(given)
        if number is not None:
            labels[i] = number
    return None if np.array_equal(labels, view.targets) else labels


def _read(root: Path) -> Dict[str, str]:
    if not (root / RECORD).is_file():
        return {}
    table = read_columns(root / RECORD, {"path": TEXT, "given": TEXT}, ("path", "given"))
    return dict(zip(table["path"].tolist(), table["given"].tolist()))
