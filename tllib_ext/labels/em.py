r"""Expectation-maximisation of class prototypes and the label-transition matrix, leave-one-out."""

from dataclasses import dataclass
from typing import Iterator, Optional

import numpy as np

__all__ = ["EMStep", "em_steps", "expected_counts", "transition_from_counts", "held_out_log_likelihood", "posterior"]

_SMOOTH = 0.5  # pseudo-labels per class from the pooled matrix: keeps every probability positive
_TEMPERATURES = np.geomspace(0.01, 0.6, 18)


@dataclass
class EMStep:
    """The estimates of one step of :func:`em_steps`."""

    log_likelihood: float
    held_out: float
    responsibilities: np.ndarray
    temperature: float
    transition: np.ndarray
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


def _leave_one_out_cosine(g: np.ndarray, r: np.ndarray) -> np.ndarray:
    """cos(g_i, sum_{j != i} r_jk g_j): otherwise a sample is evidence for the class it is counted in."""
    sums = r.T @ g
    dot = g @ sums.T
    norm = np.einsum("kd,kd->k", sums, sums) + r * (r - 2 * dot)
    return (dot - r) / np.sqrt(np.maximum(norm, 1e-6))


def _softmax(s: np.ndarray, temperature: float) -> np.ndarray:
    p = s * np.float32(1 / temperature)
    p -= p.max(1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(1, keepdims=True)
    return p


def em_steps(
    g: np.ndarray,
    y: np.ndarray,
    bounds: np.ndarray,
    r: np.ndarray,
    discount: float,
    limit: int,
    temperature: Optional[float] = None,
    seen: Optional[np.ndarray] = None,
    tolerance: float = 2e-3,
) -> Iterator[EMStep]:
    r"""Alternate prototypes, temperature, matrix and responsibilities; one :class:`EMStep` at a time.

    Args:
        g (numpy.ndarray): unit features, sorted by label
        y (numpy.ndarray): observed labels, sorted
        bounds (numpy.ndarray): positions where the labels change, with 0 and N
        r (numpy.ndarray): responsibilities to start from
        discount (float): :math:`\delta` of :func:`transition_from_counts`
        limit (int): largest number of steps
        temperature (float, optional): to start from; searched on a grid if None
        seen (numpy.ndarray, optional): mask of samples whose label may be used; the others are scored in ``held_out``
        tolerance (float, optional): stop when responsibilities change less (mean L1). Default: 2e-3
    """
    weight = None if seen is None else seen.astype(np.float32)[:, None]
    for _ in range(limit):
        s = _leave_one_out_cosine(g, r)
        counts = expected_counts(r if weight is None else r * weight, bounds)
        likelihood = _label_likelihood(r, y, counts, discount)
        score: Optional[float] = None
        for t in _TEMPERATURES if temperature is None else (temperature / 1.15, temperature, temperature * 1.15):
            candidate = _softmax(s, t)
            evidence = np.einsum("nk,nk->n", candidate, likelihood)
            value = float(np.log(evidence if seen is None else evidence[seen]).sum(dtype=np.float64))
            if score is None or value > score:
                score, temperature, p = value, float(t), candidate
        assert score is not None and temperature is not None
        matrix = transition_from_counts(counts, discount)
        out = 0.0 if seen is None else held_out_log_likelihood(p[~seen], matrix, y[~seen])
        new = p * likelihood if weight is None else np.where(weight > 0, p * likelihood, p)
        new /= new.sum(1, keepdims=True)
        change = float(np.abs(new - r).sum(dtype=np.float64)) / len(y)
        r = new
        yield EMStep(score, out, r, temperature, matrix)
        if change < tolerance:
            return


def held_out_log_likelihood(p: np.ndarray, matrix: np.ndarray, y: np.ndarray) -> float:
    """Log-likelihood of labels that took no part in the estimate."""
    return float(np.log(np.einsum("nk,nk->n", p, matrix.T[y])).sum())


def posterior(g: np.ndarray, y: np.ndarray, sums: np.ndarray, matrix: np.ndarray, temperature: float) -> np.ndarray:
    """Responsibilities of samples that took no part in the prototypes ``sums``."""
    unit = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    r = _softmax(g @ unit.T.astype(np.float32), temperature) * matrix.T.astype(np.float32)[y]
    return r / r.sum(1, keepdims=True)
