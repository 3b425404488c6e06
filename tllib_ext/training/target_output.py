"""What a finished run says about unknown: how much was called so, what the target model would say, groups, warnings."""

from pathlib import Path
from typing import List, Optional, Tuple

import numpy as np

from tllib_ext.io import write_json
from tllib_ext.labels.cached import estimate_once
from tllib_ext.methods.base import Prediction
from tllib_ext.methods.posterior import estimated_target
from tllib_ext.target import TargetModel, estimate_target
from tllib_ext.target.diagnosis import MOST, group_unknown
from tllib_ext.training.build import RunParts
from tllib_ext.typing import Record

__all__ = ["describe_unknown", "write_target_model"]

#: the target model is fitted for domains up to this length: seconds, not minutes.
TARGET_MODEL_LIMIT = 20_000
_FEW, _APART = 0.005, 0.25


def write_target_model(parts: RunParts, folder: Path, prediction: Prediction, estimate: bool) -> Tuple[Record, List[str]]:
    """Write ``target_model.json``; returns what belongs in ``results.json``, and lines for the log.

    Args:
        parts (RunParts): the run, after training
        folder (Path): of the run
        prediction (Prediction): of the whole target, arrays
        estimate (bool): fit a target model where the method has none and the inputs are frozen features
    """
    unknown = np.asarray(prediction.unknown)
    model, decides = estimated_target(parts.method), True
    if model is None or not np.array_equal(model.labels == model.posterior.shape[1] - 1, unknown):
        decides = False
        if model is None and estimate:
            model = _new_model(parts)
    share = float(unknown.mean())
    facts: Record = {"called_unknown": share, "warnings": describe_unknown(share, model, decides)}
    line, results = f"{share:.1%} of the target called unknown", {"predicted_unknown": share}
    if model is not None:
        low, high = model.share_interval
        line += "" if decides else f"; the target model says {model.share:.1%}"
        line += f" (90 % interval of the true share: {low:.0%} to {high:.0%})"
        facts.update(decides=decides, share=model.share, share_interval=[low, high], share_known=model.share_known,
                     absent=model.absent, separation=model.separation, closeness=model.closeness)  # fmt: skip
        results.update(unknown_share_low=low, unknown_share_high=high, unknown_share_known=model.share_known)
        groups = model.groups if decides else _group(parts, model, unknown)
        if groups is not None:
            facts["groups"] = groups.tolist()
    write_json(folder / "target_model.json", facts)
    texts = [f"warning: {text}" for text in facts["warnings"]]
    return results, [line, *texts] if model is None or model.share_known else [*texts, line]


def describe_unknown(share: float, model: Optional[TargetModel], decides: bool) -> List[str]:
    """Warnings with a remedy about a share of the target that was called unknown; the model's own where it ``decides``."""
    if model is not None and decides:
        return list(model.warnings)
    other = "try the method mixture, or the unknown rule target-model for a method without a detector (docs/faq.md: too many or"
    other, says = f"{other} too few unknown)", ""
    if model is not None:
        low, high = model.share_interval
        says = f", where the target model says {model.share:.0%} ({low:.0%} to {high:.0%})"
        if abs(share - model.share) > _APART and not low <= share <= high and _FEW <= share <= MOST:
            return [f"{share:.0%} of the target was called unknown{says}: one of them is wrong, look at the samples; {other}"]
    if share > MOST:
        return [f"nearly everything in the target ({share:.1%}) was called unknown{says}: the method's threshold does not fit"
                f" this data, or the domains share no class; {other}"]  # fmt: skip
    if share < _FEW and (model is None or model.share > 2 * _FEW):
        return [
            f"nothing in the target ({share:.1%}) was called unknown{says}: right for closed and partial label sets, else {other}"
        ]
    return []


def _new_model(parts: RunParts) -> Optional[TargetModel]:
    source, target, labels = parts.source.features, parts.target.features, parts.noisy.targets
    if source is None or target is None or max(len(source), len(target)) > TARGET_MODEL_LIMIT:
        return None
    x, seed = source.cpu().numpy(), parts.config.seed
    known = estimate_once(x, labels, parts.data.split.num_source, seed)
    return estimate_target(x, known.responsibilities, target.cpu().numpy(), seed, parts.config.unknown_share)


def _group(parts: RunParts, model: TargetModel, unknown: np.ndarray) -> Optional[np.ndarray]:
    """Groups of what the method called unknown, in the target model's space."""
    if parts.target.features is None or not unknown.any():
        return None
    groups = np.full(len(unknown), -1, dtype=np.int64)
    z = model.predict.embedding(parts.target.features.cpu().numpy()[unknown])
    classes = max(parts.data.split.num_source - len(model.absent), 1)
    expected = classes * unknown.mean() / max(1 - unknown.mean(), 1 / classes)  # groups as large as the known classes
    groups[unknown] = group_unknown(z, expected, parts.config.seed)[1]
    return groups
