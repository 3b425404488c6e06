"""Simulated label noise: the transition matrix, how labels are drawn from it, and the view that has them."""

import copy
import inspect
from typing import Callable, Dict, List, Mapping, Optional, Tuple, Union, cast

import numpy as np
from PIL.Image import Image

from tllib_ext.errors import UserError, closest
from tllib_ext.typing import Record
from tllib_ext.vision.datasets import NOISES
from tllib_ext.vision.datasets.corrections import labels_before
from tllib_ext.vision.datasets.noises import MATRIX_FILES, NoiseSamples, check_rows, read_transition
from tllib_ext.vision.datasets.open_set import open_set
from tllib_ext.vision.datasets.types import View
from tllib_ext.vision.datasets.universal import UniversalView

__all__ = ["transition_matrix", "is_per_sample", "uses_features", "draw_labels", "NoisyLabels"]


def transition_matrix(
    noise: str, rate: float, num_classes: int, samples: Optional[NoiseSamples] = None, seed: int = 0,
    options: Optional[Mapping[str, object]] = None,
) -> np.ndarray:  # fmt: skip
    r"""The :math:`(K, K)` matrix of a registered noise or of a file, checked.

    Args:
        noise (str): a name in :data:`~tllib_ext.vision.datasets.NOISES`, or a ``.npy`` or ``.csv`` file
        rate (float): expected share of wrong labels; a file has its own
        num_classes (int): K
        samples (NoiseSamples, optional): for a noise that depends on the instance, whose matrix is :math:`(N, K)`
        seed (int): of a matrix that is random itself
        options (dict, optional): further arguments of the noise, numbers or their texts

    Examples::

        >>> transition_matrix("pair", 0.2, 3).tolist()
        [[0.8, 0.2, 0.0], [0.0, 0.8, 0.2], [0.2, 0.0, 0.8]]
    """
    if not 0 <= rate < 1:
        raise UserError(f"rate {rate}: expected a number in [0, 1)")
    if str(noise).endswith(MATRIX_FILES):
        return read_transition(noise, num_classes)
    if samples is None and (is_per_sample(noise) or noise == "open_set"):
        raise UserError(f"the noise {noise!r} depends on the images and has no transition matrix: use NoisyLabels")
    function = NOISES.get(noise)
    more = _options(noise, function, options)
    if "seed" in inspect.signature(function).parameters:
        more["seed"] = seed
    inputs, rows = ((), num_classes) if samples is None else ((samples,), len(samples.labels))
    matrix, expected = np.asarray(function(rate, num_classes, *inputs, **more), dtype=np.float64), (rows, num_classes)
    if matrix.shape != expected:
        raise UserError(f"the noise {noise!r} gave a matrix of shape {matrix.shape}: expected {expected}")
    check_rows(matrix, f"the noise {noise!r}")
    return matrix


def _options(noise: str, function: Callable[..., object], given: Optional[Mapping[str, object]]) -> Dict[str, object]:
    """The given options with the types of their defaults; they are the function's keyword-only parameters."""
    known = {p.name: type(p.default) for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    options: Dict[str, object] = {}
    for name, value in (given or {}).items():
        if name not in known:
            raise UserError(f"the noise {noise!r} has no option {name!r}: {closest(name, known) if known else 'it has none'}")
        try:
            options[name] = known[name](value)
        except (TypeError, ValueError):
            raise UserError(f"option {name} of the noise {noise!r} is {value!r}: expected a number") from None
    return options


def is_per_sample(noise: str) -> bool:
    """Whether a noise depends on the instance; a matrix file does not."""
    return _has(noise, "per_sample")


def uses_features(noise: str) -> bool:
    """Whether a noise depends on the features of the instance."""
    return _has(noise, "uses_features")


def _has(noise: str, attribute: str) -> bool:
    return not str(noise).endswith(MATRIX_FILES) and bool(getattr(NOISES.get(noise), attribute, False))


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


def _flip_entropy(probabilities: np.ndarray, clean: np.ndarray) -> float:
    """Mean entropy, in nats, of the wrong label of an image: 0 if every image has one wrong class of its own."""
    wrong = probabilities.copy()
    wrong[np.arange(len(clean)), clean] = 0.0
    share = wrong.sum(axis=1, keepdims=True)
    wrong = (wrong / np.where(share > 0, share, 1.0))[share[:, 0] > 0]
    return float((wrong * -np.log(np.maximum(wrong, 1e-300))).sum(axis=1).mean()) if len(wrong) else 0.0


class NoisyLabels:
    r"""A source view with simulated label noise: the view's labels are true, ``targets`` are the given ones.

    Args:
        view (View): the source, e.g. a :class:`~tllib_ext.vision.datasets.universal.UniversalView`
        noise (str): a name in :data:`~tllib_ext.vision.datasets.NOISES`, or a file with a transition matrix
        rate (float): expected share of wrong labels
        seed (int): of the draw, separate from the run's seed
        mode (str): see :func:`draw_labels`
        options (dict, optional): further arguments of the noise, e.g. ``{"temperature": 10}``
        features (array, optional): :math:`(N, D)` for a noise that depends on them. Default: the view's

    Attributes: ``targets`` (given labels), ``clean_targets``, ``is_flipped``, ``realised_rate``, ``transition`` (of a noise
    that depends on the instance: its mean over each class), ``realised_transition`` and ``flip_entropy``, the
    mean entropy in nats of the wrong label of an image, for a noise that depends on the instance.
    """

    def __init__(
        self, view: View, noise: str = "none", rate: float = 0.0, seed: int = 0, mode: str = "iid",
        options: Optional[Mapping[str, object]] = None, features: Optional[np.ndarray] = None,
    ):  # fmt: skip
        if view.role != "source" or view.targets is None:
            raise UserError("label noise belongs on the source: target labels are for evaluation only")
        self.view: View = view
        self.noise, self.mode = noise, mode
        self.targets: np.ndarray
        self.flip_entropy: Optional[float] = None
        clean, k = view.targets, view.split.num_source
        if noise == "open_set":
            mixed = open_set(rate, cast(UniversalView, view), np.random.RandomState(seed), **_options(noise, open_set, options))  # type: ignore[arg-type]
            self.view, clean, self.targets, self.transition = mixed, mixed.targets, mixed.given, mixed.transition
        elif is_per_sample(noise):
            if mode != "iid":
                raise UserError(f"noise mode {mode!r}: the noise {noise!r} depends on the instance and is drawn iid only")
            features = view.features if features is None else features
            if features is None and uses_features(noise):
                remedy = "freeze the backbone (freeze_backbone=True), or use a data set of features"
                raise UserError(f"the noise {noise!r} depends on features and there are only images: {remedy}")
            generators = np.random.default_rng(seed), np.random.RandomState(seed)
            samples = NoiseSamples(clean, features, view.paths, *generators)
            probabilities = transition_matrix(noise, rate, k, samples, seed, options)
            self.transition = np.stack([probabilities[clean == label].mean(axis=0) for label in range(k)])
            self.flip_entropy = _flip_entropy(probabilities, clean)
            cumulative = probabilities.cumsum(axis=1)
            places = samples.random_state.random_sample(len(clean))[:, None] * cumulative[:, -1:]
            self.targets = (cumulative <= places).sum(axis=1)
        else:
            self.transition = transition_matrix(noise, rate, k, seed=seed, options=options)
            self.targets = draw_labels(clean, self.transition, seed, mode)
        self.clean_targets, self.is_flipped = clean, self.targets != clean
        #: true labels for the evaluation of an audit; None where no noise was simulated
        self.truth: Optional[np.ndarray] = None if noise == "none" else clean
        #: the expected share of wrong labels in this list, and the share that is wrong
        self.rate = float(1.0 - np.append(self.transition.diagonal(), 0.0)[clean].mean())  # an image of no class is never right
        self.realised_rate = float(self.is_flipped.mean())
        #: the labels before they were corrected, where this is on record
        self.before: Optional[np.ndarray] = self.labels_before() if noise == "none" else None

    def labels_before(self) -> Optional[np.ndarray]:
        """The labels that the images had before they were moved; None without a record of moves."""
        dataset = getattr(self.view, "dataset", None)
        return labels_before(cast(UniversalView, self.view), getattr(dataset, "root", None))

    def subset(self, chosen: np.ndarray) -> "NoisyLabels":
        """The same labels of the images at the positions ``chosen``."""
        part, view = copy.copy(self), cast(UniversalView, self.view)
        part.view = view.subset(chosen)
        for name in ("targets", "clean_targets", "is_flipped", "truth", "votes", "agreement", "before"):
            if getattr(self, name, None) is not None:
                setattr(part, name, getattr(self, name)[chosen])
        part.realised_rate = float(part.is_flipped.mean())
        return part

    def hold_out(self, share: float, seed: int = 0) -> "Tuple[NoisyLabels, NoisyLabels]":
        """Two parts: the images to train on, and ``share`` of the images of each given label, rounded down."""
        order, held = np.random.default_rng(seed).permutation(len(self)), np.zeros(len(self), dtype=bool)
        for label in np.unique(self.targets):
            members = order[self.targets[order] == label]
            held[members[: int(share * len(members))]] = True
        if not held.any():
            least = int(np.ceil(1 / share))
            raise UserError(f"hold_out={share}: no label has {least} images, so that none is kept back; choose a larger share")
        return self.subset(np.flatnonzero(~held)), self.subset(np.flatnonzero(held))

    @property
    def realised_transition(self) -> np.ndarray:
        """Share of each given label (columns) among the images of each true class (rows)."""
        counts, known = np.zeros_like(self.transition), self.clean_targets < len(self.transition)
        np.add.at(counts, (self.clean_targets[known], self.targets[known]), 1)
        return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    def record(self) -> Record:
        """What ``results.json`` says of the labels."""
        facts: Record = {"realised_rate": self.realised_rate, "realised_transition": self.realised_transition.tolist()}
        return facts if self.flip_entropy is None else {**facts, "flip_entropy": self.flip_entropy}

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
