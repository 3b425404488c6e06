"""Near-duplicates: samples whose features point in almost the same direction; and copies, whose features are equal."""

from typing import Iterator, List, Tuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tllib_ext.labels.embedding import chunks

__all__ = ["distinct_samples", "near_duplicates"]

_EXACT = 20_000  # up to so many samples all pairs are compared
_BITS, _TABLES, _BUCKET = 14, 8, 2048
_COPIED = 0.98  # share of equal rows that agree with the first of them in the label, from which on the labels were copied too


def near_duplicates(x: np.ndarray, cosine: float = 0.98, seed: int = 0) -> np.ndarray:
    r"""The group of each sample, numbered from 0, and -1 for a sample without near-duplicates.

    Groups are the connected components of the pairs whose cosine is at least ``cosine``. Above 20,000 samples only those
    pairs are compared that share 14 signs of random projections in one of 8 draws: 98 % of the pairs at 0.98 are found.

    Args:
        x (numpy.ndarray): centred features
        cosine (float, optional): least cosine of a pair. Default: 0.98
        seed (int, optional): of the projections. Default: 0

    Shape:
        - x: :math:`(N, D)`; Outputs: :math:`(N,)`

    Examples::

        >>> near_duplicates(np.array([[1.0, 0.0], [0.0, 1.0], [0.99, 0.01], [-1.0, 0.0]])).tolist()
        [0, -1, 0, -1]
    """
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12).astype(x.dtype)
    first: List[np.ndarray] = []
    second: List[np.ndarray] = []
    for rows, columns in _all_pairs(len(x)) if len(x) <= _EXACT else _likely_pairs(unit, seed):
        a, b = np.nonzero(unit[rows] @ unit[columns].T >= cosine)
        pair = rows[a] < columns[b]
        first.append(rows[a][pair])
        second.append(columns[b][pair])
    i, j = np.concatenate(first), np.concatenate(second)
    component = connected_components(coo_matrix((np.ones(len(i), dtype=bool), (i, j)), shape=(len(x), len(x))), False)[1]
    group = np.full(len(x), -1)
    members = np.bincount(component)[component] > 1
    group[members] = np.unique(component[members], return_inverse=True)[1]
    return group


def _all_pairs(size: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    for rows in chunks(size, _BUCKET):
        yield np.arange(size)[rows], np.arange(rows.start, size)


def _likely_pairs(unit: np.ndarray, seed: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    for _ in range(_TABLES):
        signs = unit @ rng.standard_normal((unit.shape[1], _BITS)).astype(unit.dtype) > 0
        code = signs @ (1 << np.arange(_BITS))
        order = np.argsort(code, kind="stable")
        for bucket in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
            for part in chunks(len(bucket), _BUCKET):
                yield bucket[part], bucket[part]


def distinct_samples(x: np.ndarray, y: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    r"""The samples to fit a label model to, and which of them stands for each sample.

    A copy with the same label predicts the label of its original, right or wrong, so one of them is enough. Where equal
    rows have different labels, the labels were given independently (or the features are coarse), and all samples count.

    Args:
        x (numpy.ndarray): features
        y (numpy.ndarray): labels, 0..K-1

    Shape:
        - x: :math:`(N, D)`, y: :math:`(N,)`; Outputs: :math:`(M,)`, :math:`(N,)`

    Examples::

        >>> kept, place = distinct_samples(np.array([[1.0], [2.0], [1.0]]), np.array([0, 1, 0]))
        >>> kept.tolist(), place.tolist()
        ([0, 1], [0, 1, 0])
    """
    factors = np.random.default_rng(0).integers(1 << 62, size=x.shape[1], dtype=np.uint64) | np.uint64(1)
    key = np.empty(len(x), dtype=np.uint64)
    for part in chunks(len(x), 1024):
        bits = (np.ascontiguousarray(x[part], dtype=np.float32) + np.float32(0)).view(np.uint32)  # + 0: -0.0 equals 0.0
        key[part] = (bits * factors).sum(1, dtype=np.uint64)
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    everything = np.arange(len(x))
    copy = first[group] != everything
    if len(first) == 1 or not copy.any() or (y[first[group]] == y)[copy].mean() < _COPIED:  # 1: constant features
        return everything, everything
    _, kept, place = np.unique(group * (int(y.max()) + 1) + y, return_index=True, return_inverse=True)
    order = np.argsort(kept)
    return kept[order], np.argsort(order)[place]
