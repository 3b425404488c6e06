"""The further metrics of a finished run: what they need beyond the predictions."""

from typing import Optional

import numpy as np

from tllib_ext.evaluation.further import further_metrics
from tllib_ext.methods.base import Prediction
from tllib_ext.training.build import RunParts
from tllib_ext.training.predict import features_of
from tllib_ext.typing import Record

__all__ = ["further_results"]


def further_results(parts: RunParts, prediction: Prediction, kept: Optional[np.ndarray] = None) -> Record:
    """:func:`~tllib_ext.evaluation.further.further_metrics` of the target; empty for an unlabelled one.

    Features are computed only if the unknown images are of several classes. Every process takes part. Of the ``kept``
    images only, where they are given.
    """
    view, split = parts.target.view, parts.data.split
    if view.targets is None:
        return {}
    unknown = view.targets == split.unknown
    features: Optional[np.ndarray] = None
    if len(np.unique(view.classes_of_dataset[unknown])) > 1:
        features = features_of(parts.method.backbone, parts.target).numpy()
    probs = np.asarray(prediction.probs)
    closed = probs.argmax(1)
    predicted = np.where(np.asarray(prediction.unknown).astype(bool), split.unknown, closed)
    rows = slice(None) if kept is None else kept
    return dict(
        further_metrics(
            view.targets[rows], predicted[rows], np.asarray(prediction.score)[rows], split, closed[rows],
            probs.max(1)[rows], None if features is None else features[rows], view.classes_of_dataset[rows],
            parts.config.seed,
        )
    )  # fmt: skip
