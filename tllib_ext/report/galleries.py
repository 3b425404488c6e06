"""The three galleries of the page: suspicious source images, target images called unknown, target images by class."""

from typing import List, Tuple

import numpy as np

from tllib_ext.report.gallery import Thumbnails, escape, gallery
from tllib_ext.report.run_files import RunFiles

__all__ = ["called_unknown", "most_suspicious", "predicted_classes"]

_SUSPECTS, _UNKNOWN, _PER_CLASS, _CLASSES = 48, 36, 6, 40


def most_suspicious(run: RunFiles, thumbnails: Thumbnails) -> str:
    """Source images whose given label fits least: given, suggested, and the truth where it is known."""
    s, names = run.suspects, run.split.source_classes
    items = []
    for i in range(min(_SUSPECTS, len(s.index))):
        given, suggested = (escape(names[k], 40) for k in (s.given[i], s.suggested[i]))
        lines = [f"given <b>{given}</b>", f"suggested <b>{suggested}</b> {s.probability[i]:.2f}"]
        lines, kind = [*lines, f"suspicion {s.suspicion[i]:.2f}"], ""
        if s.clean is not None:
            lines.append(f"true: {escape(names[s.clean[i]], 40)}")
            kind = "wrong" if s.is_wrong[i] else "right"
        items.append((s.path[i], lines, kind))
    legend = " Red: the label is wrong indeed; green: it was right." if s.clean is not None else ""
    return f'<h3>The {len(items)} most suspicious</h3><p class="soft">{legend}</p>{gallery(items, thumbnails)}'


def called_unknown(run: RunFiles, thumbnails: Thumbnails) -> str:
    """Target images called unknown, highest score first."""
    p = run.predictions
    rows = np.flatnonzero(p.predicted == run.split.unknown)
    if not len(rows):
        return "<p>No target image was called unknown.</p>"
    rows = rows[np.argsort(-p.score[rows], kind="stable")]
    shown = f"{len(rows[:_UNKNOWN])} of the {len(rows)} target images called unknown, highest score first"
    return f"<h3>{shown}</h3>{_legend(run)}{gallery(_targets(run, rows[:_UNKNOWN]), thumbnails)}"


def predicted_classes(run: RunFiles, thumbnails: Thumbnails) -> str:
    """A few target images of every predicted class, lowest score first."""
    p, names = run.predictions, run.split.source_classes
    counts = np.bincount(p.predicted, minlength=len(names) + 1)[: len(names)]
    found = np.flatnonzero(counts)
    parts = [f"<h3>Target images by predicted class</h3>{_legend(run)}"]
    if len(found) > _CLASSES:
        found = np.sort(found[np.argsort(-counts[found], kind="stable")][:_CLASSES])
        parts.append(f"<p>The {_CLASSES} most frequent of {np.count_nonzero(counts)} predicted classes.</p>")
    for k in found:
        rows = np.flatnonzero(p.predicted == k)
        rows = rows[np.argsort(p.score[rows], kind="stable")][:_PER_CLASS]
        parts.append(f"<h3>{escape(names[k], 60)} ({counts[k]})</h3>{gallery(_targets(run, rows), thumbnails)}")
    nobody = [names[k] for k in np.flatnonzero(counts == 0)]
    if nobody:
        parts.append(f'<p class="soft">No target image was called {escape(", ".join(nobody), 600)}.</p>')
    return "".join(parts)


def _legend(run: RunFiles) -> str:
    return '<p class="soft">Green: called rightly; red: wrongly.</p>' if run.predictions.labelled.any() else ""


def _targets(run: RunFiles, rows: np.ndarray) -> List[Tuple[str, List[str], str]]:
    p, names, items = run.predictions, run.split.label_names, []
    for i in rows:
        best = f"{escape(names[p.top[i, 0]], 40)} {p.top_probs[i, 0]:.2f}"
        lines, kind = [f"score {p.score[i]:.2f}", f"most like {best}"], ""
        if p.labelled[i]:
            kind = "right" if p.label[i] == p.predicted[i] else "wrong"
            lines.append(f"true: {escape(names[p.label[i]], 40)}")
        items.append((p.path[i], lines, kind))
    return items
