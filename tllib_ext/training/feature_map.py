"""A map of the features: t-SNE of some source and target samples, kept in ``tsne.csv``."""

from inspect import signature
from typing import Iterator, Optional, Tuple

import numpy as np
from torch import Tensor

from tllib_ext.evaluation.feature_map_file import GROUPS
from tllib_ext.training.domain import Domain

__all__ = ["Subset", "choose", "groups_of", "tsne"]


class Subset:
    """Some samples of a domain, with what :func:`~tllib_ext.training.predict.over_domain` needs.

    Args:
        domain (Domain): the whole
        index (numpy.ndarray): which samples, in this order
    """

    def __init__(self, domain: Domain, index: np.ndarray):
        self.domain, self.index = domain, index

    def __len__(self) -> int:
        return len(self.index)

    def in_order(self, batch: int, rank: int = 0, world: int = 1) -> Iterator[Tuple[np.ndarray, Tensor]]:
        """Indices and inputs of this process's share, without augmentation."""
        mine = np.array_split(self.index, world)[rank]
        yield from self.domain.read([mine[start : start + batch] for start in range(0, len(mine), batch)])


def choose(size: int, limit: int, seed: int) -> np.ndarray:
    """At most ``limit`` of ``size`` positions, in order, each as likely as any other.

    Examples::

        >>> choose(3, 5, 0).tolist(), len(choose(100, 5, 0))
        ([0, 1, 2], 5)
    """
    if size <= limit:
        return np.arange(size)
    return np.sort(np.random.default_rng(seed).choice(size, limit, replace=False))


def tsne(features: np.ndarray, seed: int) -> np.ndarray:
    r"""Points in the plane for features on the unit sphere, :math:`(N, D)` to :math:`(N, 2)`.

    The heads see directions, so distances are between directions.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    x = np.nan_to_num(np.asarray(features, dtype=np.float64), posinf=0.0, neginf=0.0)  # a diverged network has a map too
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    if len(x) < 5 or np.ptp(x, axis=0).max() < 1e-9:  # too few for a neighbourhood, or all in one place
        return np.c_[x, np.zeros((len(x), 2))][:, :2]
    x = PCA(min(30, *x.shape), svd_solver="full", random_state=seed).fit_transform(x)
    perplexity = min(30.0, (len(x) - 1) / 3)
    start = x[:, :2] if x.shape[1] > 1 else np.c_[x, np.zeros(len(x))]
    start = 1e-4 * start / max(start[:, 0].std(), 1e-12)
    rounds = "max_iter" if "max_iter" in signature(TSNE).parameters else "n_iter"  # renamed in scikit-learn 1.5
    return TSNE(2, perplexity=perplexity, init=start, random_state=seed, learning_rate="auto", **{rounds: 500}).fit_transform(x)


def groups_of(source: int, target_labels: Optional[np.ndarray], target_index: np.ndarray, unknown: int) -> np.ndarray:
    """Group numbers of ``source`` source samples followed by the target samples at ``target_index``."""
    if target_labels is None:
        target = np.full(len(target_index), GROUPS.index("target"))
    else:
        is_unknown = np.asarray(target_labels)[target_index] == unknown
        target = np.where(is_unknown, GROUPS.index("target unknown"), GROUPS.index("target shared"))
    return np.r_[np.full(source, GROUPS.index("source")), target].astype(np.int64)
