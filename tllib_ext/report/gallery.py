"""The images of the page, in the order of a user's questions: new images by class, unknown ones, doubtful labels."""

from dataclasses import dataclass, field
from typing import Dict, List, Sequence, Tuple

import numpy as np

from tllib_ext.report.data_folder import DataFolder
from tllib_ext.report.run_files import RunFiles

__all__ = ["Group", "Item", "Suspect", "Thumbnails", "class_examples", "class_groups", "suspects", "unknown_groups"]

#: images listed of all groups together, and labels of the audit; the CSV files hold the others.
LISTED, SUSPECTS = 10_000, 3_000
#: unknown images per group.
PAGE = 60


@dataclass
class Item:
    """An image: its path, the name to show, its address (empty without a file), lines of text, and a verdict.

    ``verdict`` is ``right`` or ``wrong`` where the true label is known, else empty.
    """

    path: str
    name: str
    link: str
    lines: List[str] = field(default_factory=list)
    verdict: str = ""


@dataclass
class Suspect(Item):
    """A source image whose label may be wrong; ``given`` and ``suggested`` are labels, ``true`` is a name or empty."""

    given: int = 0
    suggested: int = 0
    probability: float = 0.0
    suspicion: float = 0.0
    true: str = ""


@dataclass
class Group:
    """Images under one heading; ``left_out`` more are not listed."""

    title: str
    note: str
    items: List[Item]
    left_out: int = 0


def class_groups(run: RunFiles, folder: DataFolder) -> List[Group]:
    """Target images by predicted class, lowest score (surest) first."""
    p, groups = run.predictions, []
    for k, name in enumerate(run.split.source_classes):
        rows = np.flatnonzero(p.predicted == k)
        if len(rows):
            rows = rows[np.argsort(p.score[rows], kind="stable")]
            groups.append(_group(run, folder, name, rows))
    return groups


def unknown_groups(run: RunFiles, folder: DataFolder) -> List[Group]:
    """Target images predicted unknown, highest score first, a page per group."""
    p = run.predictions
    rows = np.flatnonzero(p.predicted == run.split.unknown)
    rows = rows[np.argsort(-p.score[rows], kind="stable")]
    pages = [rows[start : start + PAGE] for start in range(0, len(rows), PAGE)]
    return [_group(run, folder, f"Score {p.score[page[0]]:.2f} to {p.score[page[-1]]:.2f}", page) for page in pages]


def _group(run: RunFiles, folder: DataFolder, title: str, rows: np.ndarray) -> Group:
    p = run.predictions
    note = f"{len(rows)} image{'s' * (len(rows) != 1)}"
    if p.labelled[rows].all():
        note += f", {np.count_nonzero(p.label[rows] == p.predicted[rows])} right"
    listed = max(20, LISTED * len(rows) // max(len(p.index), LISTED))
    return Group(title, note, [_target(run, folder, i) for i in rows[:listed]], max(0, len(rows) - listed))


def _target(run: RunFiles, folder: DataFolder, i: int) -> Item:
    p, names = run.predictions, run.split.label_names
    lines = []
    if p.predicted[i] == run.split.unknown:
        lines = [f"score {p.score[i]:.2f}", f"nearest class: {names[p.top[i, 0]]}"]
    else:
        place = np.flatnonzero(p.top[i] == p.predicted[i])
        if len(place) and np.isfinite(p.top_probs[i, place[0]]):
            lines = [f"probability {p.top_probs[i, place[0]]:.2f}"]
    verdict = ""
    if p.labelled[i]:
        verdict = "right" if p.label[i] == p.predicted[i] else "wrong"
        lines += [f"true: {names[p.label[i]]}"] if verdict == "wrong" else []
    return Item(p.path[i], folder.name(p.path[i]), folder.link(p.path[i]), lines, verdict)


def suspects(run: RunFiles, folder: DataFolder) -> List[Suspect]:
    """Source images with a suspicion above 0, most suspicious first."""
    s, names = run.suspects, run.split.source_classes
    if s is None:
        return []
    found = []
    for i in np.flatnonzero(s.suspicion > 0)[:SUSPECTS]:
        true, verdict = "", ""
        if s.clean is not None:
            true, verdict = names[s.clean[i]], "wrong" if s.given[i] != s.clean[i] else "right"
        found.append(
            Suspect(s.path[i], folder.name(s.path[i]), folder.link(s.path[i]), [], verdict, int(s.given[i]), int(s.suggested[i]),
                    float(s.probability[i]), float(s.suspicion[i]), true)
        )  # fmt: skip
    return found


def class_examples(run: RunFiles, classes: Sequence[int]) -> Dict[int, str]:
    """Class -> path of the source image whose given label is the least suspicious of the class."""
    s = run.suspects
    if s is None:
        return {}
    last = {int(label): path for label, path in zip(s.given, s.path)}  # most suspicious first, so the last one stays
    return {k: last[k] for k in classes if k in last}


class Thumbnails:
    """Thumbnails of the most important images within a budget, numbered: a page holds each once, however often shown.

    Args:
        folder (DataFolder): where the images are
        groups (sequence of sequences of str): paths; the first of every group come first, then the second ones
        size (int): bytes of all together
        count (int): at most this many
    """

    def __init__(self, folder: DataFolder, groups: Sequence[Sequence[str]], size: int, count: int = 1500):
        ranked = sorted((rank, number) for number, group in enumerate(groups) for rank in range(len(group)))
        made = folder.thumbnails([groups[number][rank] for rank, number in ranked], count, size)
        self.data = list(made.values())
        self._numbers = {path: number for number, path in enumerate(made)}

    def number(self, path: str) -> int:
        """Position in :attr:`data`, -1 for an image without a thumbnail."""
        return self._numbers.get(path, -1)

    def part(self, items: Sequence[Item]) -> Tuple[List[Item], List[Item]]:
        """The items with a thumbnail, and those without."""
        with_one = [item for item in items if item.path in self._numbers]
        return with_one, [item for item in items if item.path not in self._numbers]
