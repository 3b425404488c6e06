"""The validators of one evaluation: what they need of the method and the data. Target labels are not used."""

from typing import Dict, Optional

import numpy as np
import torch

from tllib_ext.evaluation.validators import dev_risk, mean_entropy, snd
from tllib_ext.methods.base import Prediction
from tllib_ext.methods.posterior import estimated_target
from tllib_ext.modules.heads import Heads
from tllib_ext.training.build import RunParts
from tllib_ext.training.feature_map import Subset, choose
from tllib_ext.training.predict import over_domain

__all__ = ["validators"]

#: samples of each domain that validators look at: enough for two digits, and little beside an evaluation
SAMPLES = 500


def validators(parts: RunParts, prediction: Prediction) -> Dict[str, Optional[float]]:
    """Every validator that the method allows, by its key in ``results.jsonl``; every process takes part."""
    method, seed = parts.method, parts.config.seed
    labelled = parts.source if parts.held_out is None else parts.held_out
    here, there = (choose(len(domain), SAMPLES, seed) for domain in (labelled, parts.target))
    probs = np.asarray(prediction.probs)
    found: Dict[str, Optional[float]] = {"val_entropy": mean_entropy(probs), "val_snd": snd(probs[there])}
    model = getattr(method, "label_model", None)
    labels = labelled.view.targets if model is None or parts.held_out is not None else model.corrected
    with_features = lambda x: (method.backbone(x), method.predict(x).probs)  # noqa: E731
    source, guessed = over_domain(with_features, method, Subset(labelled, here), 128)
    wrong = guessed.argmax(1) != labels[here]
    found["val_source_accuracy" if parts.held_out is None else "val_held_out_accuracy"] = float(1 - wrong.mean())
    heads = getattr(method, "heads", None)
    if isinstance(heads, Heads):

        def with_heads(x: torch.Tensor) -> "tuple[torch.Tensor, ...]":
            features = method.backbone(x)
            return features, torch.stack([logits.argmax(1) for logits in heads(features)], 1)

        target, classes = over_domain(with_heads, method, Subset(parts.target, there), 128)
        found["val_agreement"] = float((classes == classes[:, :1]).all(axis=1).mean())
    else:
        (target,) = over_domain(lambda x: (method.backbone(x),), method, Subset(parts.target, there), 128)
    found["val_dev"] = dev_risk(source, target, wrong.astype(np.float64))
    target_model = estimated_target(method)
    if target_model is not None:
        found["val_separation"] = float(target_model.separation)
    return found
