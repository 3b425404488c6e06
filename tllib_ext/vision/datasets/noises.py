r"""Kinds of label noise: functions from a rate to a transition matrix.

A transition matrix Q is row-stochastic: :math:`Q_{kj} = P(\text{label } j \mid \text{class } k)`. The *rate* is the
expected share of wrong labels.

A noise is a function ``(rate, num_classes) -> (K, K)`` transition matrix; a parameter ``seed`` gets the seed of the
noise, keyword-only parameters are its options. A noise that depends on the instance is a function
``(rate, num_classes, samples) -> (N, K)`` with an attribute ``per_sample = True``, and ``uses_features = True`` if it
cannot do without ``samples.features``. Noises are registered in :data:`~tllib_ext.vision.datasets.NOISES` or named by an
entry point of the group ``tllib_ext.noises``.
"""

import csv
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.io import atomic_text, escape_formula
from tllib_ext.typing import PathLike

__all__ = [
    "Noise", "NoiseSamples", "none", "pair", "symmetric", "symmetric_inclusive", "random_partner", "check_rows",
    "read_transition", "write_transition",
]  # fmt: skip

#: first cell of a transition matrix with names: rows are true classes, columns the labels they were given.
NAMES_CORNER = "true class / label"
#: suffixes of files with a transition matrix
MATRIX_FILES = (".npy", ".csv")


@dataclass(frozen=True)
class NoiseSamples:
    """The samples whose labels a noise changes: N true labels, (N, D) features or None for images, paths, and two random
    generators that are seeded by the seed of the noise; ``random_state`` draws the labels afterwards."""

    labels: np.ndarray
    features: Optional[np.ndarray]
    paths: Sequence[str]
    generator: np.random.Generator
    random_state: np.random.RandomState


#: ``(rate, num_classes)``, and ``samples`` if it is ``per_sample``.
Noise = Callable[..., np.ndarray]


def none(rate: float, num_classes: int) -> np.ndarray:
    """The identity: every label is right."""
    return np.eye(num_classes)


def pair(rate: float, num_classes: int) -> np.ndarray:
    """Class k becomes k + 1 (the last becomes 0) with probability ``rate``."""
    eye = np.eye(num_classes)
    return (1.0 - rate) * eye + rate * np.roll(eye, 1, axis=1)


def symmetric(rate: float, num_classes: int) -> np.ndarray:
    """A class becomes any of the others with probability ``rate``."""
    return np.where(np.eye(num_classes) > 0, 1.0 - rate, rate / (num_classes - 1))


def symmetric_inclusive(rate: float, num_classes: int) -> np.ndarray:
    r"""A label is drawn anew from all classes with probability ``rate``: a share :math:`\rho (1 - 1/K)` is wrong.

    DivideMix and GearNet call this symmetric noise.
    """
    return (1.0 - rate) * np.eye(num_classes) + rate / num_classes


def random_partner(rate: float, num_classes: int, seed: int = 0) -> np.ndarray:
    """Every class becomes one other class, drawn once, with probability ``rate``; two classes may have the same partner.

    GearNet's ``flip``; seed 0 draws the partners of its code.
    """
    rng, matrix = np.random.RandomState((1 + seed) % 2**32), (1.0 - rate) * np.eye(num_classes)
    for k in range(num_classes):
        matrix[k, rng.choice(np.delete(np.arange(num_classes), k))] = rate
    return matrix


def check_rows(matrix: np.ndarray, title: str) -> np.ndarray:
    """The sums of the rows, which are one up to rounding."""
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise UserError(f"{title} has negative or non-finite entries: expected probabilities")
    sums = matrix.sum(axis=1)
    if (abs(sums - 1) > 1e-6).any():
        row = int(abs(sums - 1).argmax())
        raise UserError(f"{title}: row {row} sums to {sums[row]:.6g}, expected 1 (rows are true classes)")
    return sums


def read_transition(path: PathLike, num_classes: int) -> np.ndarray:
    """A row-stochastic matrix from a ``.npy`` or ``.csv`` file; the latter may have class names above and to the left."""
    text = str(path)
    try:
        if text.endswith(".npy"):
            matrix = np.load(path, allow_pickle=False)
        else:
            with open(path, newline="", encoding="utf-8") as file:
                rows = [row for row in csv.reader(file) if row]
                if rows and rows[0][0] == NAMES_CORNER:  # as write_transition wrote it
                    rows = [row[1:] for row in rows[1:]]
                matrix = np.array([[float(cell) for cell in row] for row in rows])
        matrix = np.asarray(matrix, dtype=np.float64)
    except OSError as error:
        raise UserError(f"cannot read the transition matrix {text}: {error.strerror or error}") from None
    except Exception as error:  # any damaged file: not numbers, ragged rows, not UTF-8, a bad npy header
        raise UserError(f"{text} is not a matrix of numbers: {error}") from None
    if matrix.shape != (num_classes, num_classes):
        raise UserError(f"{text} has shape {matrix.shape}, expected {(num_classes, num_classes)}: one row per source class")
    return matrix / check_rows(matrix, text)[:, None]


def write_transition(path: PathLike, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Write a (K, K) matrix with the names of its K classes, for spreadsheets and for :func:`read_transition`."""
    with atomic_text(str(path)) as stream:
        writer = csv.writer(stream)
        writer.writerow([NAMES_CORNER, *map(escape_formula, names)])
        writer.writerows([escape_formula(name), *map(float, row)] for name, row in zip(names, matrix))
