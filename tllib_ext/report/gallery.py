"""The images of the page, in the order of a user's questions: new images by class, unknown ones, doubtful labels."""

from dataclasses import dataclass, field
from typing import Dict, List, Sequence

import numpy as np

from tllib_ext.report.data_folder import DataFolder
from tllib_ext.report.run_files import RunFiles

__all__ = ["Group", "Item", "Suspect", "class_examples", "class_groups", "interleave", "suspects", "unknown_groups"]

#: images listed of all groups together, and labels of the audit; the CSV files hold the others.
LISTED, SUSPECTS = 10_000, 3_000
#: unknown images per group.
PAGE = 60


@dataclass
class Item:
    """An image: path, shown name, address (empty without a file), lines, verdict (``right``, ``wrong`` or empty)."""

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
    kind: str = ""
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
    p, order = run.predictions, np.argsort(run.predictions.score, kind="stable")
    by_class = {name: order[p.predicted[order] == k] for k, name in enumerate(run.split.source_classes)}
    return [_group(run, folder, name, rows) for name, rows in by_class.items() if len(rows)]


def unknown_groups(run: RunFiles, folder: DataFolder) -> List[Group]:
    """Target images predicted unknown: by the groups that the run found, or in pages; highest score first."""
    p = run.predictions
    order = np.argsort(-p.score, kind="stable")
    rows = order[p.predicted[order] == run.split.unknown]
    found = np.asarray((run.target_model or {}).get("groups") or [])
    if len(rows) and found.shape == p.index.shape and np.array_equal(np.sort(p.index), np.arange(len(found))):
        group = found[p.index[rows]]
        return [_group(run, folder, f"Group {g + 1}" if g >= 0 else "Others", rows[group == g])
                for g in sorted(np.unique(group), key=lambda g: (g < 0, g))]  # fmt: skip
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
    s = run.suspects
    if s is None:
        return []
    found = []
    for i in np.flatnonzero(s.suspicion > 0)[:SUSPECTS]:
        item = Suspect(s.path[i], folder.name(s.path[i]), folder.link(s.path[i]))
        item.given, item.suggested = int(s.given[i]), int(s.suggested[i])
        item.probability, item.suspicion = float(s.probability[i]), float(s.suspicion[i])
        item.kind = "" if s.kind is None else str(s.kind[i])
        if s.clean is not None:
            item.true, item.verdict = run.split.label_names[s.clean[i]], "wrong" if s.given[i] != s.clean[i] else "right"
        found.append(item)
    return found


def class_examples(run: RunFiles, classes: Sequence[int]) -> Dict[int, str]:
    """Class -> path of the source image whose given label is the least suspicious of the class."""
    s = run.suspects
    # Most suspicious first, so the last one stays.
    last = {} if s is None else {int(label): path for label, path in zip(s.given, s.path)}
    return {k: last[k] for k in classes if k in last}


def interleave(groups: Sequence[Sequence[str]]) -> List[str]:
    """The first of every group, then the second ones, and so on."""
    ranked = sorted((rank, number) for number, group in enumerate(groups) for rank in range(len(group)))
    return [groups[number][rank] for rank, number in ranked]
