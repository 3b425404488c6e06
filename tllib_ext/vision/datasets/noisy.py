r"""Wrong labels on purpose: transition matrices and the wrapper that draws from them.

A transition matrix Q is row-stochastic: :math:`Q_{kj} = P(\text{label } j \mid \text{class } k)`. The *rate* is the
expected share of wrong labels; the realised share differs when labels are drawn independently, and is reported.
"""

import csv
import os
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from tllib_ext.errors import UserError, closest
from tllib_ext.io import atomic_text, escape_formula

__all__ = ["NOISES", "transition_matrix", "read_transition", "write_transition", "draw_labels", "NoisyLabels"]

NOISES = ("none", "pair", "symmetric")
#: first cell of a transition matrix with names: rows are true classes, columns the labels they were given.
NAMES_CORNER = "true class / label"


def transition_matrix(noise: str, rate: float, num_classes: int) -> np.ndarray:
    r"""``pair``: class k becomes k+1 (the last becomes 0) with probability ``rate``; ``symmetric``: any other class.

    Examples::

        >>> transition_matrix("pair", 0.2, 3).tolist()
        [[0.8, 0.2, 0.0], [0.0, 0.8, 0.2], [0.2, 0.0, 0.8]]
    """
    if not 0 <= rate < 1:
        raise UserError(f"--rate {rate}: expected a number in [0, 1)")
    eye = np.eye(num_classes)
    if noise == "none":
        return eye
    if noise == "pair":
        return (1.0 - rate) * eye + rate * np.roll(eye, 1, axis=1)
    if noise == "symmetric":
        return np.where(eye > 0, 1.0 - rate, rate / (num_classes - 1))
    return read_transition(noise, num_classes)


def read_transition(path: Union[str, os.PathLike], num_classes: int) -> np.ndarray:
    """A row-stochastic matrix from a ``.npy`` or ``.csv`` file, in which class names may stand above and to the left."""
    text = str(path)
    if not text.endswith((".npy", ".csv")):
        raise UserError(f"--noise {text!r}: expected a .npy or .csv file, or {closest(text, NOISES)}")
    try:
        if text.endswith(".npy"):
            matrix = np.load(path, allow_pickle=False)
        else:
            with open(path, newline="", encoding="utf-8") as file:
                rows = [row for row in csv.reader(file) if row]
                if rows and rows[0][0] == NAMES_CORNER:  # as a run wrote it
                    rows = [row[1:] for row in rows[1:]]
                matrix = np.array([[float(cell) for cell in row] for row in rows])
        matrix = np.asarray(matrix, dtype=np.float64)
    except OSError as error:
        raise UserError(f"cannot read the transition matrix {text}: {error.strerror or error}") from None
    except Exception as error:  # any damaged file: not numbers, ragged rows, not UTF-8, a bad npy header
        raise UserError(f"{text} is not a matrix of numbers: {error}") from None
    if matrix.shape != (num_classes, num_classes):
        raise UserError(f"{text} has shape {matrix.shape}, expected {(num_classes, num_classes)}: one row per source class")
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise UserError(f"{text} has negative or non-finite entries: expected probabilities")
    sums = matrix.sum(axis=1)
    if (abs(sums - 1) > 1e-6).any():
        row = int(abs(sums - 1).argmax())
        raise UserError(f"{text}: row {row} sums to {sums[row]:.6g}, expected 1 (rows are true classes)")
    return matrix / sums[:, None]


def write_transition(path: Union[str, os.PathLike], matrix: np.ndarray, names: Sequence[str]) -> None:
    """Write a matrix for a spreadsheet, or for ``--noise FILE.csv``: the same labels can be wrong in the same way again.

    Args:
        path (path): ``.csv``
        matrix (array): (K, K), rows sum to one
        names (sequence of str): of the K classes
    """
    with atomic_text(path) as stream:
        writer = csv.writer(stream)
        writer.writerow([NAMES_CORNER, *map(escape_formula, names)])
        writer.writerows([escape_formula(name), *map(float, row)] for name, row in zip(names, matrix))


def draw_labels(clean: np.ndarray, transition: np.ndarray, seed: int = 0, mode: str = "iid") -> np.ndarray:
    """Noisy labels for ``clean`` ones.

    Args:
        clean (array): true labels in list order
        transition (array): row-stochastic Q
        seed (int): of this draw alone
        mode (str): ``"iid"``: the authors' draw bit for bit, one multinomial per image in list order from a legacy
            ``RandomState(seed)``; ``"exact"``: in every class exactly ``round(rate * n_k)`` labels are wrong

    Examples::

        >>> draw_labels(np.zeros(4, int), transition_matrix("pair", 0.5, 2), mode="exact").sum().item()
        2
    """
    clean = np.asarray(clean, dtype=np.int64)
    rng = np.random.RandomState(seed)
    noisy = clean.copy()
    if mode == "iid":
        if np.array_equal(transition, np.eye(len(transition))):
            return noisy
        # A run of equal labels in one call consumes the stream exactly as one call per image does.
        starts = np.flatnonzero(np.r_[True, clean[1:] != clean[:-1]]) if len(clean) else np.array([], dtype=int)
        for start, stop in zip(starts, np.r_[starts[1:], len(clean)]):
            draws = rng.multinomial(1, transition[clean[start]], size=stop - start)
            noisy[start:stop] = draws.argmax(axis=1)
        return noisy
    if mode != "exact":
        raise UserError(f"--noise-mode {mode!r}: expected iid or exact")
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
    r"""A source view with wrong labels; relabel first, then add noise.

    Args:
        view (UniversalView): the source
        noise (str): ``none``, ``pair``, ``symmetric`` or a matrix file
        rate (float): of ``pair`` and ``symmetric``
        seed (int): of the draw, separate from the run's seed
        mode (str): see :func:`draw_labels`

    Attributes: ``targets`` (given labels), ``clean_targets``, ``is_flipped``, ``realised_rate``, ``transition`` and
    ``realised_transition``; everything else is the view's.
    """

    def __init__(self, view: Any, noise: str = "none", rate: float = 0.0, seed: int = 0, mode: str = "iid"):
        if view.role != "source":
            raise UserError("label noise belongs on the source: target labels are for evaluation only")
        self.view, self.noise, self.mode = view, noise, mode
        self.transition = transition_matrix(noise, rate, view.split.num_source)
        self.clean_targets: np.ndarray = view.targets
        self.targets: np.ndarray = draw_labels(view.targets, self.transition, seed, mode)
        self.is_flipped: np.ndarray = self.targets != self.clean_targets
        #: what the experimenter means by the rate; for a matrix, the expected share of wrong labels in this list
        self.rate = float(1.0 - self.transition.diagonal()[self.clean_targets].mean())

    @property
    def realised_rate(self) -> float:
        """The share of labels that are wrong."""
        return float(self.is_flipped.mean())

    @property
    def realised_transition(self) -> np.ndarray:
        """Share of each given label (columns) among the images of each true class (rows)."""
        k = self.view.split.num_source
        counts = np.bincount(self.clean_targets * k + self.targets, minlength=k * k).reshape(k, k)
        return counts / counts.sum(axis=1, keepdims=True)

    @property
    def samples(self) -> List[Tuple[str, int]]:
        """Path and given label."""
        return list(zip(self.view.paths, self.targets.tolist()))

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, index: int) -> Tuple[Any, Optional[int]]:
        return self.view[index][0], int(self.targets[index])

    def __getattr__(self, name: str) -> Any:
        if name == "view":
            raise AttributeError(name)  # not built yet (copying, unpickling): do not look for the view in itself
        return getattr(self.view, name)
