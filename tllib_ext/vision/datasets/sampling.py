"""The samples of each step, as a function of (seed, step): a run can resume at any step on any machine."""

from typing import Optional

import numpy as np

from tllib_ext.errors import UserError

__all__ = ["BalancedBatches", "ShuffledBatches"]


class BalancedBatches:
    """Class-balanced batches with replacement: every (noisy) class is drawn equally often.

    Args:
        labels (array): the given labels
        batch (int), seed (int): size of the global batch, and the run's seed
        weights (array, optional): how often each sample is drawn within its class; 0 leaves it out

    Examples::

        >>> batches = BalancedBatches(np.array([0] * 90 + [1] * 10), 6, seed=0)
        >>> batches(3).tolist() == batches(3).tolist(), len(batches(4))
        (True, 6)
    """

    def __init__(self, labels: np.ndarray, batch: int, seed: int = 0, weights: Optional[np.ndarray] = None):
        weights = np.ones(len(labels)) if weights is None else weights
        totals = np.bincount(labels, weights)
        self._cumulative = np.cumsum(weights / np.where(totals > 0, totals, 1)[labels])
        self._cumulative /= self._cumulative[-1]
        self.batch, self.seed = batch, seed

    def __call__(self, step: int) -> np.ndarray:
        rng = np.random.Generator(np.random.Philox(key=[self.seed, 1], counter=[0, 0, 0, step]))
        drawn = np.searchsorted(self._cumulative, rng.random(self.batch), side="right")
        return np.minimum(drawn, len(self._cumulative) - 1)


class ShuffledBatches:
    """Batches without replacement; the list is reshuffled for each pass, and an incomplete last batch is dropped.

    Args:
        size (int): length of the list
        batch (int), seed (int): size of the global batch, and the run's seed

    Examples::

        >>> batches = ShuffledBatches(6, 3, seed=0)
        >>> sorted([*batches(0), *batches(1)]) == [*range(6)]
        True
    """

    def __init__(self, size: int, batch: int, seed: int = 0):
        if batch > size:
            raise UserError(f"a batch of {batch} is larger than the domain, which has {size} samples: choose a smaller one")
        self.size, self.batch, self.seed = size, batch, seed
        self._epoch: Optional[int] = None
        self._order = np.arange(0)

    def __call__(self, step: int) -> np.ndarray:
        epoch, position = divmod(step, self.size // self.batch)
        if epoch != self._epoch:
            rng = np.random.Generator(np.random.Philox(key=[self.seed, 2], counter=[0, 0, 0, epoch]))
            self._epoch, self._order = epoch, rng.permutation(self.size)
        return self._order[position * self.batch : (position + 1) * self.batch]
