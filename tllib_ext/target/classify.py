"""Label target samples without any training: the label model's posterior and the target model, no gradient step."""

from typing import Any, NamedTuple

import numpy as np

from tllib_ext.target.model import TargetModel, decide, estimate_target

__all__ = ["Classified", "classify_target"]


class Classified(NamedTuple):
    r"""Labels of N target samples.

    Shape:
        - labels: :math:`(N,)`, ``0..K-1`` or K = unknown
        - probs: :math:`(N, K)`, class probabilities given that the sample is known
        - unknown: :math:`(N,)`, posterior of unknown
    """

    labels: np.ndarray
    probs: np.ndarray
    unknown: np.ndarray
    model: TargetModel


def classify_target(source_features: Any, source_posterior: Any, target_features: Any, seed: int = 0) -> Classified:
    r"""Classify the target by :func:`~tllib_ext.target.estimate_target`; the arguments are the same.

    Examples::

        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(np.arange(3), 40)
        >>> features = 4 * np.eye(8)[y] + rng.standard_normal((120, 8))
        >>> found = classify_target(features[y < 2], np.eye(2)[y[y < 2]], features)
        >>> float((found.labels == y).mean()) > 0.9
        True
    """
    model = estimate_target(source_features, source_posterior, target_features, seed)
    return Classified(decide(model.posterior), class_probabilities(model.posterior), model.posterior[:, -1], model)


def class_probabilities(posterior: np.ndarray) -> np.ndarray:
    """The first K columns, rows summing to one; uniform where unknown has it all."""
    known = posterior[:, :-1] + 1e-12
    return known / known.sum(1, keepdims=True)
