r"""The audit of the given labels: which of them look wrong.

Every visit of training adds to two records of sample i (:class:`~tllib_ext.methods.loss_history.LossHistory`): its joint
loss, both heads' cross entropy and their divergence, and the heads' mean probabilities. Averaged over the visits they are
:math:`\bar L_i` and :math:`\bar p_i`; :math:`e^{-\bar L_i}` is the probability with which the heads agreed on the given
label :math:`\tilde y_i`. The suspicion

.. math::
    s_i = \max_{j \ne \tilde y_i} \bar p_{ij} - e^{-\bar L_i} \quad \in (-1, 1)

is above zero where another class fits better than the given label. A label model (posterior :math:`r_i` over classes,
:mod:`tllib_ext.labels`) adds what no single sample shows, that one class is often given the label of one other; with it
the suspicion is the mean of :math:`s_i` and :math:`\max_{j \ne \tilde y_i} r_{ij} - r_{i \tilde y_i}`.

A sample that training never drew is scored by the trained method's probabilities (``fallback``): one value instead of
a mean, marked by ``visits`` 0.
"""

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Tuple, cast

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.typing import Values

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LabelAudit", "audit_labels", "audit_quality", "detection_quality", "suspicion"]


class LabelAudit(NamedTuple):
    r"""The audit of every given label, in list order.

    Shape:
        - suspicion: :math:`(N, )` above 0 where another class fits better; suggested: :math:`(N, )` most probable class
        - probs: :math:`(N, K)` the probabilities behind it; loss, visits: :math:`(N, )` of training
        - kind, group: :math:`(N, )` kind of doubt and group of near-duplicates, where there are frozen features
          (:class:`~tllib_ext.labels.issues.LabelIssues`)
    """

    suspicion: np.ndarray
    suggested: np.ndarray
    probs: np.ndarray
    loss: np.ndarray
    visits: np.ndarray
    kind: Optional[np.ndarray] = None
    group: Optional[np.ndarray] = None


def audit_labels(
    history: Any, given: np.ndarray, posterior: Optional[Values] = None, fallback: Optional[Values] = None
) -> LabelAudit:
    r"""Score every given label by the losses of training and, where there is one, the posterior of a label model.

    Args:
        history: has ``loss``, ``probs`` and ``visits`` (:class:`~tllib_ext.methods.loss_history.LossHistory`)
        given (numpy.ndarray): :math:`(N, )` labels in 0..K-1, possibly wrong
        posterior (optional): :math:`(N, K)` of the true class (``responsibilities`` of a label model)
        fallback (optional): :math:`(N, K)` probabilities of the trained method, for samples never drawn; without it
            nothing is known about such a sample

    Examples::

        >>> class History: loss, probs, visits = [0.1, 3.0], [[0.9, 0.1], [0.9, 0.1]], [4, 4]
        >>> audit_labels(History, np.array([0, 1])).suggested.tolist()
        [0, 0]
    """
    given, classes = _array(given), _array(history.probs).shape[1]
    if len(given) and not (0 <= given.min() and given.max() < classes):
        raise UserError(f"given labels run from {given.min()} to {given.max()}: expected 0..{classes - 1}")
    if len(given) != len(_array(history.loss)):
        raise UserError(f"{len(given)} given labels, {len(_array(history.loss))} samples in the history")
    loss, probs, visits = _without_gaps(history, given, fallback)
    posterior = None if posterior is None else _array(posterior).astype(np.float64)
    if posterior is not None and (np.take_along_axis(posterior, given[:, None], 1) == 1).all():
        posterior = None  # no evidence of noise: it ranks no label above another
    score = suspicion(loss, probs, given, posterior)
    probs = probs if posterior is None else (probs + posterior) / 2
    own = np.take_along_axis(probs, given[:, None], 1)[:, 0]
    suggested = np.where(own >= probs.max(1), given, probs.argmax(1))
    return LabelAudit(score, suggested, probs, loss, visits)


def audit_quality(audit: LabelAudit, given: np.ndarray, clean: np.ndarray) -> Dict[str, Optional[float]]:
    """How well wrong labels were found: ``suspects_auroc``, ``suspects_precision`` (at the noise rate) and
    ``suggestion_accuracy``, the share of wrong labels whose suggestion is right."""
    wrong = given != clean
    right = float((audit.suggested == clean)[wrong].mean()) if wrong.any() else None
    return {**detection_quality(audit.suspicion, wrong), "suggestion_accuracy": right}


def _without_gaps(history: Any, given: np.ndarray, fallback: Optional[Values]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The history's means; a sample that was never drawn gets ``fallback``, or the uniform distribution."""
    loss, probs, visits = (_array(value).astype(np.float64) for value in (history.loss, history.probs, history.visits))
    gaps = (visits == 0) | np.isnan(loss) | ~np.isfinite(probs).all(1)  # never drawn, or drawn while training diverged
    if gaps.any():
        filled = np.full_like(probs, 1 / probs.shape[1])
        if fallback is not None:
            given_probs = _array(fallback).astype(np.float64)
            filled = np.where(np.isfinite(given_probs).all(1, keepdims=True), given_probs, filled)
        probs = np.where(gaps[:, None], filled, probs)
        own = np.take_along_axis(probs, given[:, None], 1)[:, 0]
        loss = np.where(gaps, -np.log(np.maximum(own, 1e-12)), loss)
    return loss, probs / probs.sum(1, keepdims=True), visits.astype(np.int64)


def suspicion(loss: np.ndarray, probs: np.ndarray, given: np.ndarray, posterior: Optional[np.ndarray] = None) -> np.ndarray:
    r"""The score of the head of this file, in (-1, 1); above 0 another class fits better than the given one.

    Shape:
        - loss, given: :math:`(N, )`; probs, posterior: :math:`(N, K)`

    Examples::

        >>> suspicion(np.array([0.0, 3.0]), np.array([[1.0, 0.0], [0.9, 0.1]]), np.array([0, 1])).round(3).tolist()
        [-1.0, 0.85]
    """
    score = _best_other(probs, given) - np.exp(-loss)
    if posterior is None:
        return score
    own = np.take_along_axis(posterior, given[:, None], 1)[:, 0]
    return (score + _best_other(posterior, given) - own) / 2


def _best_other(probs: np.ndarray, given: np.ndarray) -> np.ndarray:
    others = probs.copy()
    np.put_along_axis(others, given[:, None], -np.inf, 1)
    return others.max(1)


def detection_quality(score: np.ndarray, wrong: np.ndarray) -> Dict[str, Optional[float]]:
    """AUROC of the score, and the share of wrong labels among the n most suspicious, n being the number of wrong ones.

    Examples::

        >>> detection_quality(np.array([0.9, 0.1, 0.8, 0.2]), np.array([True, False, False, True]))
        {'suspects_auroc': 0.75, 'suspects_precision': 0.5}
    """
    if wrong.all() or not wrong.any():
        return {"suspects_auroc": None, "suspects_precision": None}
    from sklearn.metrics import roc_auc_score

    first = np.argsort(-score, kind="stable")[: np.count_nonzero(wrong)]
    return {"suspects_auroc": float(roc_auc_score(wrong, score)), "suspects_precision": float(wrong[first].mean())}


def _array(value: Values) -> np.ndarray:
    return np.asarray(cast("Tensor", value).detach().cpu() if hasattr(value, "detach") else value)
