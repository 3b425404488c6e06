r"""Expectation-maximisation of class prototypes and the label-transition matrix, leave-one-out."""

from dataclasses import dataclass
from typing import Iterator, NamedTuple, Optional

import numpy as np

__all__ = ["STRUCTURES", "EMStep", "Structure", "em_steps", "expected_counts", "transition_from_counts", "posterior", "softmax",
           "leave_one_out_cosine"]  # fmt: skip


class Structure(NamedTuple):
    """A family of noise models: the discount of :func:`transition_from_counts`, and whether wrong labels also follow the
    image, that is, prefer the classes that it resembles."""

    discount: float
    similar: bool = False


STRUCTURES = {
    "shared": Structure(float("inf")),
    "sparse": Structure(2.0),
    "free": Structure(0.5),
    "similar": Structure(float("inf"), True),
    "mixed": Structure(0.5, True),
}

_SMOOTH = 0.5  # pseudo-labels per class from the pooled matrix: keeps every probability positive
_TEMPERATURES = np.geomspace(0.01, 0.6, 18)
_FACTORS = np.array([1 / 1.15, 1 / 1.04, 1.0, 1.04, 1.15])


@dataclass
class EMStep:
    """The estimates of one step of :func:`em_steps`."""

    log_likelihood: float
    held_out: float
    responsibilities: np.ndarray
    temperature: float
    transition: np.ndarray
    similar: float  # share of the wrong labels that follow the image
    probabilities: np.ndarray  # of the classes, from the features alone
    score: float = float("-inf")  # log-likelihood plus log prior of the matrix, by which steps are compared


def expected_counts(r: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    r"""Expected counts :math:`C_{kj}=\sum_{i:\tilde y_i=j} r_{ik}` of samples sorted by label and cut at ``bounds``."""
    return np.add.reduceat(r, bounds[:-1], axis=0, dtype=np.float64).T


def _pooled(counts: np.ndarray) -> np.ndarray:
    k, total = len(counts), counts.sum()
    right = (np.trace(counts) + 0.5) / (total + 1)
    matrix = np.full((k, k), (1 - right) / max(k - 1, 1))
    np.fill_diagonal(matrix, right)
    return matrix


def transition_from_counts(counts: np.ndarray, discount: float) -> np.ndarray:
    r"""The matrix Q from expected counts, by absolute discounting towards the pooled (symmetric) matrix.

    With :math:`D_{kj}=\min(C_{kj},\delta)` off the diagonal (0 on it), :math:`n_k=\sum_j C_{kj}` and P the matrix with
    one shared rate,

    .. math::
        Q_{kj} = \frac{C_{kj} - D_{kj} + (\epsilon + \sum_l D_{kl}) P_{kj}}{n_k + \epsilon}.

    :math:`\delta=0` is a free matrix, :math:`\delta=\infty` the pooled one with a single parameter.

    Examples::

        >>> transition_from_counts(np.array([[8., 2.], [0., 10.]]), np.inf).round(2)
        array([[0.88, 0.12],
               [0.12, 0.88]])
    """
    pooled = _pooled(counts)
    if np.isinf(discount):
        return pooled
    taken = np.minimum(counts, discount)
    np.fill_diagonal(taken, 0)
    back = taken.sum(1) + _SMOOTH
    return (counts - taken + back[:, None] * pooled) / (counts.sum(1) + _SMOOTH)[:, None]


def _label_likelihood(r: np.ndarray, y: np.ndarray, counts: np.ndarray, discount: float) -> np.ndarray:
    """Q[k, y_i] for every sample and class, with sample i's own part taken out of the counts."""
    pooled = _pooled(counts).T.astype(np.float32)[y]
    if np.isinf(discount):
        return pooled
    taken = np.minimum(counts, discount)
    np.fill_diagonal(taken, 0)
    rest = (taken.sum(1)[None] - taken.T + _SMOOTH).astype(np.float32)[y]
    own = np.maximum(counts.T.astype(np.float32)[y] - r, 0)
    off = np.minimum(own, np.float32(discount))
    off[np.arange(len(y)), y] = 0
    return (own - off + (rest + off) * pooled) / (np.maximum(counts.sum(1).astype(np.float32) - r, 0) + _SMOOTH)


def leave_one_out_cosine(g: np.ndarray, r: np.ndarray, sums: Optional[np.ndarray] = None) -> np.ndarray:
    """cos(g_i, sum_{j != i} r_jk g_j): otherwise a sample is evidence for the class it is counted in."""
    sums = r.T @ g if sums is None else sums
    dot = g @ sums.T
    norm = np.einsum("kd,kd->k", sums, sums) + r * (r - 2 * dot)
    return (dot - r) / np.sqrt(np.maximum(norm, 1e-6))


def softmax(s: np.ndarray, temperature: float) -> np.ndarray:
    """Class probabilities of the scores ``s`` at a temperature."""
    p = s * np.float32(1 / temperature)
    p -= p.max(1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(1, keepdims=True)
    return p


def _follow_image(p: np.ndarray, y: np.ndarray, likelihood: np.ndarray, matrix: np.ndarray, share: float) -> np.ndarray:
    r"""The likelihood of the labels when a ``share`` of the wrong ones follows the image.

    Such a label is j with probability :math:`p_{ij} / (1 - p_{ik})` where k is the true class: hard images are mistaken
    for what they resemble.
    """
    rows = np.arange(len(y))
    wrong = (1 - np.diag(matrix)).astype(np.float32)
    similar = wrong * np.minimum(p[rows, y][:, None] / np.maximum(1 - p, np.float32(1e-6)), 1)
    mixture = np.float32(1 - share) * likelihood + np.float32(share) * similar
    mixture[rows, y] = likelihood[rows, y]
    return mixture


def em_steps(
    g: np.ndarray,
    y: np.ndarray,
    bounds: np.ndarray,
    r: np.ndarray,
    structure: Structure,
    limit: int,
    temperature: Optional[float] = None,
    seen: Optional[np.ndarray] = None,
    tolerance: float = 2e-3,
    similar: float = 0.5,
) -> Iterator[EMStep]:
    r"""Alternate prototypes, temperature, matrix and responsibilities; one :class:`EMStep` at a time.

    Args:
        g (numpy.ndarray): unit features, sorted by label
        y (numpy.ndarray): observed labels, sorted
        bounds (numpy.ndarray): positions where the labels change, with 0 and N
        r (numpy.ndarray): responsibilities to start from
        structure (Structure): the family of noise models
        limit (int): largest number of steps
        temperature (float, optional): to start from; searched on a grid if None
        seen (numpy.ndarray, optional): mask of samples whose label may be used; the others are scored in ``held_out``
        tolerance (float, optional): stop when responsibilities change less (mean L1). Default: 2e-3
        similar (float, optional): share of wrong labels that follow the image, to start from. Default: 0.5
    """
    weight = None if seen is None else seen.astype(np.float32)[:, None]
    rows = np.arange(len(y))
    if not structure.similar:
        similar = 0.0
    for _ in range(limit):
        s = leave_one_out_cosine(g, r)
        counts = expected_counts(r, bounds)
        matrix = transition_from_counts(counts, structure.discount)
        by_class = _label_likelihood(r, y, counts, structure.discount)
        score: Optional[float] = None
        for t in _TEMPERATURES if temperature is None else temperature * _FACTORS:
            candidate = softmax(s, t)
            label = _follow_image(candidate, y, by_class, matrix, similar) if similar else by_class
            evidence = np.einsum("nk,nk->n", candidate, label)
            value = float(np.log(evidence if seen is None else evidence[seen]).sum(dtype=np.float64))
            if score is None or value > score:
                score, temperature, p, likelihood = value, float(t), candidate, label
        assert score is not None and temperature is not None
        out = 0.0
        if seen is not None:
            hidden = matrix.T.astype(np.float32)[y[~seen]]
            if similar:
                hidden = _follow_image(p[~seen], y[~seen], hidden, matrix, similar)
            out = float(np.log(np.einsum("nk,nk->n", p[~seen], hidden)).sum(dtype=np.float64))
        new = p * likelihood
        new /= new.sum(1, keepdims=True)
        if weight is not None:
            new *= weight  # hidden labels and their samples take no part
        if similar:
            total = float(new.sum() - new[rows, y].sum())
            by_matrix = new * (np.float32(1 - similar) * by_class / likelihood)
            by_matrix[rows, y] = 0
            similar = float(np.clip(1 - (by_matrix.sum() + 0.5) / (total + 1), 0.01, 0.99))
        change = float(np.abs(new - r).sum(dtype=np.float64)) / len(y)
        r = new
        yield EMStep(score, out, r, temperature, matrix, similar, p)
        if change < tolerance:
            return


def posterior(
    g: np.ndarray, y: np.ndarray, sums: np.ndarray, matrix: np.ndarray, temperature: float, similar: float = 0.0
) -> np.ndarray:
    """Responsibilities of samples that took no part in the prototypes ``sums``."""
    unit = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    p = softmax(g @ unit.T.astype(np.float32), temperature)
    likelihood = matrix.T.astype(np.float32)[y]
    r = p * (_follow_image(p, y, likelihood, matrix, similar) if similar else likelihood)
    return r / r.sum(1, keepdims=True)
