r"""Moves out of a local optimum: join the two classes that look like one, cut the one that looks like two."""

from typing import Iterator, List, Tuple

import numpy as np

from tllib_ext.labels.starts import Worth, rename, totals

__all__ = ["proposals"]

_TEMPERATURE = 0.18


def _halves(g: np.ndarray, steps: int = 4) -> np.ndarray:
    """Two spherical clusters, from the sign along the direction of largest variance."""
    centred = g - g.mean(0)
    direction = centred[np.argmax((centred**2).sum(1))]
    for _ in range(steps):
        direction = centred.T @ (centred @ direction)
        direction /= max(float(np.linalg.norm(direction)), 1e-12)
    side = centred @ direction > 0
    for _ in range(steps):
        if side.all() or not side.any():
            break
        side = g @ (g[side].mean(0) - g[~side].mean(0)) > 0
    return side


def proposals(g: np.ndarray, y: np.ndarray, bounds: np.ndarray, r: np.ndarray, number: int) -> Iterator[np.ndarray]:
    r"""Responsibilities after joining classes a and b and cutting class c in two, most promising first.

    With pair noise a class can be torn between two names while two others share one, and every class in between has
    moved up by one: rounds cannot repair that, this move does. It is judged by the worth that joins small clusters
    (:mod:`tllib_ext.labels.starts`); the caller keeps it if the likelihood grows.
    """
    classes = len(bounds) - 1
    group = r.argmax(1)
    sums, hist = totals(g, y, group, classes, classes)
    worth = Worth(_TEMPERATURE, classes, len(y))
    gram = sums @ sums.T
    value = worth(np.diag(gram), hist)
    joins: List[Tuple[float, int, int]] = []
    for a in range(classes):
        union = worth(gram[a, a] + np.diag(gram) + 2 * gram[a], hist[a] + hist)
        joins += [(float(union[b] - value[a] - value[b]), a, b) for b in range(a + 1, classes)]
    cuts: List[Tuple[float, int, np.ndarray]] = []
    for c in range(classes):
        members = np.flatnonzero(group == c)
        if len(members) < 4:
            continue
        side = _halves(g[members])
        part, part_hist = totals(g[members], y[members], side.astype(np.int64), classes, 2)
        cuts.append((float(worth((part**2).sum(1), part_hist).sum() - value[c]), c, members[side]))
    joins = sorted(joins, key=lambda move: -move[0])[:number]
    cuts = sorted(cuts, key=lambda move: -move[0])[:number]
    moves = [(j[0] + c[0], j, c) for j in joins for c in cuts if c[1] not in j[1:]]
    for _, (_, a, b), (_, _, members) in sorted(moves, key=lambda move: -move[0])[:number]:
        label = group.copy()
        label[label == b] = a
        label[members] = b
        yield rename(0.9 * np.eye(classes, dtype=np.float32)[label] + np.float32(0.1 / classes), bounds)
