"""Simulated label noise: the transition matrix, how labels are drawn from it, and the view that has them."""

from typing import List, Optional, Tuple, Union

import numpy as np
from PIL.Image import Image

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets import NOISES
from tllib_ext.vision.datasets.noises import MATRIX_FILES, NoiseSamples, check_rows, read_transition
from tllib_ext.vision.datasets.types import View

__all__ = ["transition_matrix", "is_per_sample", "draw_labels", "NoisyLabels"]


def transition_matrix(noise: str, rate: float, num_classes: int, samples: Optional[NoiseSamples] = None) -> np.ndarray:
    r"""The :math:`(K, K)` matrix of a registered noise or of a file, checked.

    Args:
        noise (str): a name in :data:`~tllib_ext.vision.datasets.NOISES`, or a ``.npy`` or ``.csv`` file
        rate (float): expected share of wrong labels; a file has its own
        num_classes (int): K
        samples (NoiseSamples, optional): for a noise that depends on the instance, whose matrix is :math:`(N, K)`

    Examples::

        >>> transition_matrix("pair", 0.2, 3).tolist()
        [[0.8, 0.2, 0.0], [0.0, 0.8, 0.2], [0.2, 0.0, 0.8]]
    """
    if not 0 <= rate < 1:
        raise UserError(f"rate {rate}: expected a number in [0, 1)")
    if str(noise).endswith(MATRIX_FILES):
        return read_transition(noise, num_classes)
    if samples is None and is_per_sample(noise):
        raise UserError(f"the noise {noise!r} depends on the instance and has no transition matrix: use NoisyLabels")
    more, rows = ((), num_classes) if samples is None else ((samples,), len(samples.labels))
    matrix, expected = np.asarray(NOISES.get(noise)(rate, num_classes, *more), dtype=np.float64), (rows, num_classes)
    if matrix.shape != expected:
        raise UserError(f"the noise {noise!r} gave a matrix of shape {matrix.shape}: expected {expected}")
    check_rows(matrix, f"the noise {noise!r}")
    return matrix


def is_per_sample(noise: str) -> bool:
    """Whether a noise depends on the instance; a matrix file does not."""
    return not str(noise).endswith(MATRIX_FILES) and bool(getattr(NOISES.get(noise), "per_sample", False))


def draw_labels(clean: np.ndarray, transition: np.ndarray, seed: int = 0, mode: str = "iid") -> np.ndarray:
    """Noisy labels for ``clean`` ones.

    Args:
        clean (array), transition (array): true labels in list order, and the row-stochastic Q
        seed (int): of this draw alone
        mode (str): ``"iid"``: the authors' draw bit for bit, one multinomial per image in list order from a legacy
            ``RandomState(seed)``; ``"exact"``: in every class exactly ``round(rate * n_k)`` labels are wrong

    Examples::

        >>> draw_labels(np.zeros(4, int), np.array([[0.5, 0.5], [0.5, 0.5]]), mode="exact").sum().item()
        2
    """
    clean, rng = np.asarray(clean, dtype=np.int64), np.random.RandomState(seed)
    noisy = clean.copy()
    if mode == "iid":
        if np.array_equal(transition, np.eye(len(transition))):
            return noisy
        # A run of equal labels in one call consumes the stream exactly as one call per image does.
        for run in np.split(np.arange(len(clean)), np.flatnonzero(np.diff(clean)) + 1) if len(clean) else ():
            noisy[run] = rng.multinomial(1, transition[clean[run[0]]], size=len(run)).argmax(axis=1)
        return noisy
    if mode != "exact":
        raise UserError(f"noise mode {mode!r}: expected iid or exact")
    for k in np.unique(clean):
        members = rng.permutation(np.flatnonzero(clean == k))
        wrong = transition[k].copy()
        wrong[k] = 0.0
        count = int(np.floor(wrong.sum() * len(members) + 0.5))
        if count:
            quota = wrong / wrong.sum() * count
            whole = np.floor(quota).astype(int)
            # What rounding leaves over goes to the labels with the largest remainders, ties by chance.
            order = np.lexsort((rng.permutation(len(quota)), whole - quota))
            whole[order[: count - whole.sum()]] += 1
            noisy[members[:count]] = np.repeat(np.arange(len(whole)), whole)
    return noisy


class NoisyLabels:
    r"""A source view with simulated label noise: the view's labels are true, ``targets`` are the given ones.

    Args:
        view (View): the source, e.g. a :class:`~tllib_ext.vision.datasets.universal.UniversalView`
        noise (str): a name in :data:`~tllib_ext.vision.datasets.NOISES`, or a file with a transition matrix
        rate (float): expected share of wrong labels
        seed (int): of the draw, separate from the run's seed
        mode (str): see :func:`draw_labels`

    Attributes: ``targets`` (given labels), ``clean_targets``, ``is_flipped``, ``realised_rate``, ``transition`` (of a noise
    that depends on the instance: its mean over each class) and ``realised_transition``.
    """

    def __init__(self, view: View, noise: str = "none", rate: float = 0.0, seed: int = 0, mode: str = "iid"):
        if view.role != "source" or view.targets is None:
            raise UserError("label noise belongs on the source: target labels are for evaluation only")
        self.view, self.noise, self.mode = view, noise, mode
        clean, k = view.targets, view.split.num_source
        if is_per_sample(noise):
            if mode != "iid":
                raise UserError(f"noise mode {mode!r}: the noise {noise!r} depends on the instance and is drawn iid only")
            samples = NoiseSamples(clean, view.features, view.paths, np.random.default_rng(seed))
            probabilities = transition_matrix(noise, rate, k, samples)
            self.transition = np.stack([probabilities[clean == label].mean(axis=0) for label in range(k)])
            cumulative = probabilities.cumsum(axis=1)
            places = samples.generator.random(len(clean))[:, None] * cumulative[:, -1:]
            self.targets: np.ndarray = (cumulative <= places).sum(axis=1)
        else:
            self.transition = transition_matrix(noise, rate, k)
            self.targets = draw_labels(clean, self.transition, seed, mode)
        self.clean_targets, self.is_flipped = clean, self.targets != clean
        #: the expected share of wrong labels in this list, and the share that is wrong
        self.rate = float(1.0 - self.transition.diagonal()[clean].mean())
        self.realised_rate = float(self.is_flipped.mean())

    @property
    def realised_transition(self) -> np.ndarray:
        """Share of each given label (columns) among the images of each true class (rows)."""
        counts = np.zeros_like(self.transition)
        np.add.at(counts, (self.clean_targets, self.targets), 1)
        return counts / counts.sum(axis=1, keepdims=True)

    @property
    def samples(self) -> List[Tuple[str, int]]:
        """Path and given label."""
        return list(zip(self.view.paths, self.targets.tolist()))

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, index: int) -> Tuple[Union[Image, np.ndarray], Optional[int]]:
        return self.view[index][0], int(self.targets[index])

    # The rest is the view's.
    path = property(lambda self: self.view.path)
    split = property(lambda self: self.view.split)
    role = property(lambda self: self.view.role)
    paths = property(lambda self: self.view.paths)
    classes = property(lambda self: self.view.classes)
    loader = property(lambda self: self.view.loader)
    features = property(lambda self: self.view.features)
