"""Source labels as people gave them, from a file: one annotator or several, the true class for evaluation only."""

import csv
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import numpy as np

from tllib_ext.errors import UserError, closest
from tllib_ext.io import TEXT, open_text, read_columns
from tllib_ext.typing import PathLike, Record
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.universal import UniversalView

__all__ = ["GivenLabels", "LabelTable", "majority", "read_labels"]

#: the column that names the image, and the one with its true class
KEYS, TRUTH = ("path", "index"), ("clean", "true")
#: between the cells of a row: spreadsheets of some countries write semicolons
DELIMITERS = (",", ";", "\t")
_LIST_LINE = re.compile(r"(.*\S) (\d{1,9})\s*")


@dataclass(frozen=True)
class LabelTable:
    """Labels of images as a file has them, not yet compared with a data set.

    Args:
        file (str): where they come from
        key (str): what names the images: ``path`` or ``index``
        keys (numpy.ndarray): the name of the image of every row
        labels (dict): a column of labels as text by its name; several are several annotators
        truth (numpy.ndarray, optional): the true classes
        given (numpy.ndarray, optional): the column ``given``, where it is none of the labels
        numbered (bool): whether labels are positions in the data set's classes (a list file)
    """

    file: str
    key: str
    keys: np.ndarray
    labels: Dict[str, np.ndarray]
    truth: Optional[np.ndarray] = None
    given: Optional[np.ndarray] = None
    numbered: bool = False


def read_labels(file: PathLike, columns: Optional[str] = None) -> LabelTable:
    """Read a file of labels: a CSV file with a header, or a list file with lines ``path number``, as tllib's.

    Cells are separated by commas, semicolons or tabs.

    Args:
        file (str): the file
        columns (str, optional): the column of the labels, or several, separated by commas. Default: the only column besides
            path and true class
    """
    with open_text(file) as stream:
        first = stream.readline()
    delimiter, header = _header(first)
    if not any(name in header for name in KEYS):
        listed = _read_list(file) if columns is None else None
        if listed is None:
            raise UserError(f"{file} has no column path and no column index: expected a header such as path,label")
        paths, numbers = listed
        return LabelTable(str(file), "path", paths, {"label": numbers}, numbered=True)
    key, chosen, truth = _choose(file, header, columns)
    more = [name for name in (truth, "given") if name and name in header and name not in chosen]
    names = [key, *chosen, *more]
    table = read_columns(file, dict.fromkeys(names, TEXT), names, delimiter)
    given = table["given"] if "given" in more else None
    return LabelTable(str(file), key, table[key], {name: table[name] for name in chosen}, table[truth] if truth else None, given)


def _header(line: str) -> Tuple[str, List[str]]:
    """The delimiter of a file with this first line, and the names of its columns."""
    candidates = [(delimiter, next(csv.reader([line], delimiter=delimiter), [])) for delimiter in DELIMITERS]
    return next(((mark, names) for mark, names in candidates if any(key in names for key in KEYS)), candidates[0])


def _read_list(file: PathLike) -> Optional[Tuple[np.ndarray, np.ndarray]]:
    """Paths and numbers of a list file; None if it is none."""
    with open_text(file) as stream:
        matches = [_LIST_LINE.fullmatch(line) for line in stream if line.strip()]
    if not matches or None in matches:
        return None
    return tuple(np.array([match[part] for match in matches if match], dtype=object) for part in (1, 2))  # type: ignore


class GivenLabels(NoisyLabels):
    r"""A source view with the labels of a CSV file.

    A CSV file has a header. Column ``path`` names the image, by its path or the last parts of it, or column ``index`` by
    its position in the source list. Labels are class names, or positions in the data set's classes. A column ``clean``
    or ``true`` holds the true class; it is used for evaluation only. A list file has lines ``path number`` and no header.

    Args:
        view (UniversalView): the source; its own labels only decide which images belong to it
        file (str): the file
        columns (str, optional): the column of the given labels, or several, separated by commas: one per annotator, of
            whom the majority counts. Default: the only column besides path and true class
        rate (float): share of wrong labels that methods are told

    Attributes: those of :class:`NoisyLabels`; ``truth`` is None without a column of true classes. ``votes``: :math:`(N, K)`
    share of annotators by class; ``agreement``: :math:`(N, )` share that gave the label in use.
    """

    def __init__(self, view: UniversalView, file: PathLike, columns: Optional[str] = None, rate: float = 0.0):
        if view.role != "source":
            raise UserError("given labels belong to the source: target labels are for evaluation only")
        self.view, self.noise, self.mode, self.rate, self.flip_entropy = view, "none", "given", rate, None
        table = read_labels(file, columns)
        rows = _rows_of(view, table.keys, table.key, str(file))
        labels = _Reader(view, table.numbered)
        several = np.stack([labels(cells[rows], f"{file}, column {name}") for name, cells in table.labels.items()])
        self.file, self.columns = str(file), list(table.labels)
        self.targets, self.votes = majority(several, view.split.num_source)
        self.agreement: np.ndarray = self.votes[np.arange(len(rows)), self.targets]
        empty = np.flatnonzero(np.bincount(self.targets, minlength=view.split.num_source) == 0)
        if len(empty):
            raise UserError(
                f"{file}: no image has the label {view.split.source_classes[empty[0]]!r}; check the file and the split"
            )
        known = None if table.truth is None else labels(table.truth[rows], f"{file}, true classes", or_unknown=True)
        self.truth: Optional[np.ndarray] = known
        earlier = self._before(table, rows, labels)
        self.before: Optional[np.ndarray] = None if np.array_equal(earlier, self.targets) else earlier
        self.clean_targets = self.targets if known is None else known
        self.is_flipped = self.targets != self.clean_targets
        self.realised_rate = float(self.is_flipped.mean())
        self.transition = np.eye(view.split.num_source)
        self.transition = self.realised_transition

    def _before(self, table: LabelTable, rows: np.ndarray, labels: "_Reader") -> np.ndarray:
        """The labels before corrections: of the column ``given``, else those that the images were moved from."""
        if table.given is not None:
            return labels(table.given[rows], f"{table.file}, column given")
        earlier = super().labels_before()
        return self.targets if earlier is None else earlier

    def record(self) -> Record:
        facts = super().record() if self.truth is not None else {"realised_rate": None, "realised_transition": None}
        return {
            **facts,
            "labels": self.file,
            "labels_column": ",".join(self.columns),
            "annotator_agreement": float(self.agreement.mean()),
        }


def majority(several: np.ndarray, num_classes: int) -> Tuple[np.ndarray, np.ndarray]:
    r"""The label that most annotators gave, and the share of annotators by class; the earlier annotator decides a tie.

    Shape:
        - several: :math:`(A, N)` labels; returns :math:`(N, )` and :math:`(N, K)`

    Examples::

        >>> majority(np.array([[0, 2], [1, 1], [1, 0]]), 3)[0].tolist()
        [1, 2]
    """
    place, votes = np.arange(several.shape[1]), np.zeros((several.shape[1], num_classes))
    for labels in several:
        votes[place, labels] += 1 / len(several)
    label = several[-1]
    for earlier in several[-2::-1]:
        label = np.where(votes[place, earlier] >= votes[place, label] - 1e-9, earlier, label)
    return label, votes


def _choose(file: PathLike, header: List[str], columns: Optional[str]) -> Tuple[str, List[str], Optional[str]]:
    """The columns of the image, of the given labels and of the true class."""
    key = next(name for name in KEYS if name in header)
    truth = next((name for name in TRUTH if name in header), None)
    others = [name for name in header if name not in (*KEYS, truth)]
    given = [name.strip() for name in columns.split(",")] if columns else others
    if not columns and set(others) == {"given", "label"}:  # the old and the new label
        given = ["label"]
    if not columns and len(given) != 1:
        found = f"the label columns {', '.join(others)}" if others else "no column of labels"
        raise UserError(f"{file} has {found}: name the one to use, or several annotators (labels_column)")
    for name in given:
        if name not in header:
            raise UserError(f"{file} has no column {name!r}: {closest(name, others)}")
        if name == key:
            raise UserError(f"{file}: column {name!r} names the images and cannot be the label")
    return key, given, None if truth in given else truth


def _rows_of(view: UniversalView, keys: np.ndarray, key: str, file: str) -> np.ndarray:
    """The row of every image of the view."""
    table: Dict[str, int] = {}
    for row, cell in enumerate(keys.tolist()):
        name = str(cell).replace("\\", "/").removeprefix("./")
        if table.setdefault(name, row) != row:
            raise UserError(f"{file}: {key} {name!r} is in two rows")
    rows: List[int] = []
    absent: List[str] = []
    owner: Dict[str, str] = {}
    for position, path in enumerate(view.paths):
        name = str(view.indices[position]) if key == "index" else path.replace("\\", "/")
        while name and name not in table:  # shorten by the first folder
            name = name.partition("/")[2]
        if not name:
            absent.append(path if key == "path" else str(view.indices[position]))
            continue
        if owner.setdefault(name, path) != path:
            raise UserError(f"{file}: {key} {name!r} fits two images, {owner[name]} and {path}: write more of the path")
        rows.append(table[name])
    if absent:
        some = f"{len(absent)} of {len(view)} source images have no row"
        raise UserError(f"{file}: {some}, the first is {absent[0]}: expected a row with its {key}")
    return np.array(rows)


class _Reader:
    """Reads cells as labels of the split: class names, or positions in the data set's classes."""

    def __init__(self, view: UniversalView, numbered: bool):
        self.split, names = view.split, [str(name) for name in view.dataset.classes]
        self.names = {str(k): name for k, name in enumerate(names)}
        if not numbered:
            self.names.update({name: name for name in names})

    def __call__(self, cells: np.ndarray, where: str, or_unknown: bool = False) -> np.ndarray:
        labels = {}
        for cell in dict.fromkeys(cells.tolist()):
            name = self.names.get(str(cell).strip(), str(cell).strip())
            label = self.split.source_index(name)
            if label is None and or_unknown and name:
                label = self.split.unknown
            if label is None:
                found = f"the label {name!r} is no source class" if name else "an image has no label"
                raise UserError(f"{where}: {found}: {closest(name, self.split.source_classes)}")
            labels[cell] = label
        return np.array([labels[cell] for cell in cells.tolist()], dtype=np.int64)
