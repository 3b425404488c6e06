r"""Initial responsibilities: k-means clusters merged by features and label histograms, and their matching to labels."""

import warnings
from typing import Dict, List, Sequence, Tuple, Union

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import betaln, gammaln
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from tllib_ext.labels.em import expected_counts

__all__ = ["GroupObjective", "match_clusters", "order_by_label", "initial_responsibilities", "cluster_totals", "rate_log_prior",
           "names_tie", "renamed_rates"]  # fmt: skip

_LAMBDA = 0.1  # Dirichlet parameter of a cluster's label histogram: few labels per cluster
_NEAR = 0.12  # further share of wrong labels up to which another name of a class is plausible
_TIE = 0.016  # further share up to which another name of every class is as good as the first
_RIGHT = 0.6  # prior mean of the share of right labels in a class: more often right than not


def match_clusters(counts: np.ndarray) -> np.ndarray:
    r"""The most probable one-to-one matching of clusters to labels.

    A cluster with label counts :math:`c` that is matched to j has right labels :math:`c_j`, whose share has a Beta prior,
    and wrong ones, whose distribution has a sparse Dirichlet prior; the sum of the log evidences is maximised over
    all permutations (Hungarian method). Counting right labels alone is not enough: with pair noise near one half a
    chain of neighbours can gain a few by moving up together, at the price of one class without any right label.

    Examples::

        >>> match_clusters(np.array([[0., 5., 4.], [4., 0., 5.], [5., 4., 0.]]))
        array([1, 2, 0])
    """
    k, total = len(counts), counts.sum(1, keepdims=True)
    # Classes share most of their rate, so the prior is as strong as half a class.
    strength = 10 + 0.5 * counts.sum() / k
    a, b = _RIGHT * strength, (1 - _RIGHT) * strength
    cells = gammaln(counts + _LAMBDA) - gammaln(_LAMBDA)
    rest = (k - 1) * _LAMBDA
    wrong = cells.sum(1, keepdims=True) - cells + gammaln(rest) - gammaln(total - counts + rest)
    right = betaln(a + counts, b + total - counts) - betaln(a, b)
    return linear_sum_assignment(-(right + wrong))[1]


def renamed_rates(counts: np.ndarray) -> List[float]:
    r"""Rates of the plausible readings in which class k, for each k, or every class has another name.

    Names of classes are known from the labels alone. A reading has as few wrong labels as possible; it is plausible if it
    makes at most 12 % more of the labels of the classes with another name wrong.

    Examples::

        >>> [round(rate, 2) for rate in renamed_rates(np.array([[5.5, 4.5, 0.0], [4.5, 5.5, 0.0], [0.0, 0.0, 10.0]]))]
        [0.37, 0.37]
    """
    rows, total, rates = np.arange(len(counts)), counts.sum(), []
    for k in (*rows, rows):
        name = _renamed(counts, k)
        lost = counts[rows, rows].sum() - counts[rows, name].sum()
        if lost <= _NEAR * counts[name != rows].sum():
            rates.append(float(1 - counts[rows, name].sum() / total))
    return rates


def names_tie(counts: np.ndarray) -> bool:
    r"""Whether a reading in which every class has another name has nearly as many right labels: at most 1.6 % fewer.

    Then nothing tells which of the two is right, and correction by the wrong one would make nearly all labels wrong.

    Examples::

        >>> names_tie(np.array([[50.0, 49.0], [49.0, 50.0]])), names_tie(np.array([[60.0, 40.0], [40.0, 60.0]]))
        (True, False)
    """
    rows = np.arange(len(counts))
    return bool(np.trace(counts) - counts[rows, _renamed(counts, rows)].sum() <= _TIE * counts.sum())


def _renamed(counts: np.ndarray, other: Union[int, np.ndarray]) -> np.ndarray:
    """The names with the most right labels among those in which the ``other`` classes have another name than their own."""
    allowed = counts.copy()
    allowed[other, other] = -counts.sum()
    return np.asarray(linear_sum_assignment(-allowed)[1])


def rate_log_prior(r: np.ndarray, bounds: np.ndarray) -> float:
    r"""Log prior of the matrix: :math:`10\sum_k\min(0,\log(d_k/\bar d))` with the shares :math:`d_k` of right labels.

    Classes have similar rates, so a class far below the mean is unlikely; even rates cost nothing, however high.
    """
    counts = expected_counts(r, bounds)
    right = counts[np.arange(len(counts)), match_clusters(counts)]
    share = (right + 0.5) / (counts.sum(1) + 1)
    return 10 * float(np.minimum(np.log(share * counts.sum() / (right.sum() + 0.5)), 0).sum())


def _kmeans(g: np.ndarray, number: int, seed: int) -> np.ndarray:
    """k-means of unit vectors; fewer clusters where samples coincide."""
    kmeans = KMeans(number, n_init=1, max_iter=5, random_state=seed)
    # One thread: with several, the centres' sums depend on which of them is first.
    with warnings.catch_warnings(), threadpool_limits(1, user_api="openmp"):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than clusters
        cluster = kmeans.fit_predict(g)
    return np.unique(cluster, return_inverse=True)[1]


class GroupObjective:
    r"""Objective of a group: :math:`\frac1T\sum_i\cos(g_i,\sum_{j\ne i}g_j)` plus the log evidence of its label counts."""

    def __init__(self, temperature: float, classes: int, size: int) -> None:
        self.temperature = temperature
        self.cell = gammaln(np.arange(2 * size + 1) + _LAMBDA) - gammaln(_LAMBDA)
        self.row = gammaln(classes * _LAMBDA) - gammaln(np.arange(2 * size + 1) + classes * _LAMBDA)

    def __call__(self, norm2: np.ndarray, histogram: np.ndarray) -> np.ndarray:
        n = histogram.sum(-1)
        inner = np.maximum(norm2 - n, 0) / np.sqrt(np.maximum(norm2 - 2 * norm2 / np.maximum(n, 1) + 1, 1e-6))
        return np.where(n > 1, inner, 0) / self.temperature + self.cell[histogram].sum(-1) + self.row[n]


def _merge(sums: np.ndarray, histogram: np.ndarray, classes: int, objective: GroupObjective) -> np.ndarray:
    """Greedy agglomeration down to ``classes`` groups: the pair whose union loses least is merged."""
    gram, hist = sums @ sums.T, histogram.copy()
    owner, alive = np.arange(len(sums)), np.ones(len(sums), dtype=bool)
    value = objective(np.diag(gram), hist)

    def losses(i: int) -> np.ndarray:
        loss = value[i] + value - objective(gram[i, i] + np.diag(gram) + 2 * gram[i], hist[i] + hist)
        loss[~alive] = np.inf
        loss[i] = np.inf
        return loss

    table = np.stack([losses(i) for i in range(len(sums))])
    for _ in range(len(sums) - classes):
        i, j = (int(k) for k in np.unravel_index(table.argmin(), table.shape))
        gram[i] += gram[j]
        gram[:, i] += gram[:, j]
        hist[i] += hist[j]
        value[i] = objective(gram[i, i], hist[i])
        owner[owner == j] = i
        alive[j] = False
        table[j] = table[:, j] = np.inf
        table[i] = table[:, i] = losses(i)
    return np.unique(owner, return_inverse=True)[1]


def _reassign(
    sums: np.ndarray, histogram: np.ndarray, group: np.ndarray, objective: GroupObjective, sweeps: int = 8
) -> np.ndarray:
    """Move small clusters between groups while the total objective grows."""
    classes = group.max() + 1
    total = np.zeros((classes, sums.shape[1]))
    hist = np.zeros((classes, histogram.shape[1]), dtype=np.int64)
    np.add.at(total, group, sums)
    np.add.at(hist, group, histogram)
    norm2, own2 = (total**2).sum(1), (sums**2).sum(1)
    value = objective(norm2, hist)
    for _ in range(sweeps):
        moved = False
        for m in range(len(sums)):
            a = group[m]
            left, left_hist = total[a] - sums[m], hist[a] - histogram[m]
            if left_hist.sum() == 0:
                continue
            left_value = objective(left @ left, left_hist)
            joined = objective(norm2 + 2 * total @ sums[m] + own2[m], hist + histogram[m])
            gain = joined - value + left_value - value[a]
            gain[a] = 0
            b = int(gain.argmax())
            if gain[b] > 1e-9:
                total[a], hist[a], norm2[a], value[a] = left, left_hist, left @ left, left_value
                total[b] += sums[m]
                hist[b] += histogram[m]
                norm2[b], value[b] = total[b] @ total[b], joined[b]
                group[m] = b
                moved = True
        if not moved:
            break
    return group


def initial_responsibilities(
    g: np.ndarray, y: np.ndarray, bounds: np.ndarray, temperatures: Sequence[float], seed: int, draws: int = 2, cap: int = 320
) -> Dict[str, np.ndarray]:
    r"""Initial responsibilities: the labels themselves, and merged clusters at each temperature.

    With small temperatures the features dominate, with large ones the labels.
    """
    classes = len(bounds) - 1
    eye = np.eye(classes, dtype=np.float32)
    points = {"labels": 0.3 * eye[y] + np.float32(0.7 / classes)}  # a high rate: it comes down faster than it goes up
    number = min(len(y), max(classes, min(8 * classes, len(y) // 3, max(cap, 2 * classes))))
    for draw in range(draws):
        small = _kmeans(g, number, draws * seed + draw)
        if small.max() + 1 < classes:
            continue
        sums, hist = cluster_totals(g, y, small, classes, small.max() + 1)
        for temperature in temperatures:
            objective = GroupObjective(temperature, classes, len(y))
            group = _reassign(sums, hist, _merge(sums, hist, classes, objective), objective)
            r = 0.9 * eye[group[small]] + np.float32(0.1 / classes)
            points[f"clusters {draw + 1} at {temperature:g}"] = order_by_label(r, bounds)
    return points


def cluster_totals(g: np.ndarray, y: np.ndarray, cluster: np.ndarray, classes: int, number: int) -> Tuple[np.ndarray, np.ndarray]:
    """Sum of the features and histogram of the labels of each of ``number`` clusters."""
    sums = np.zeros((number, g.shape[1]))
    hist = np.zeros((number, classes), dtype=np.int64)
    np.add.at(sums, cluster, g)
    np.add.at(hist, (cluster, y), 1)
    return sums, hist


def order_by_label(r: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Responsibilities with column j for the cluster that :func:`match_clusters` assigns to label j."""
    out = np.empty_like(r)
    out[:, match_clusters(expected_counts(r, bounds))] = r
    return out
