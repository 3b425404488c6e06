"""What a finished run writes beside its metrics: the audit of the labels, the label model, the feature map."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from tllib_ext.evaluation.feature_map_file import FeatureMap, write_feature_map
from tllib_ext.evaluation.suspects_file import write_suspects
from tllib_ext.io import write_json
from tllib_ext.labels.audit import audit_labels, audit_quality
from tllib_ext.labels.cached import estimate_once, issues_once
from tllib_ext.labels.issues import FINE, KINDS, LabelIssues
from tllib_ext.labels.transition import LabelModel
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.training.build import RunParts
from tllib_ext.training.feature_map import Subset, choose, groups_of, tsne
from tllib_ext.training.predict import over_domain
from tllib_ext.typing import Record
from tllib_ext.vision.datasets.labels_file import GivenLabels
from tllib_ext.vision.datasets.noises import write_transition

__all__ = ["RunOutputs", "compute_outputs", "label_model_of", "write_outputs"]

#: points of the t-SNE map: more take longer and show less.
MAP_POINTS = 800
#: the label model is fitted for lists up to this length: seconds, not minutes.
LABEL_MODEL_LIMIT = 20_000


@dataclass
class RunOutputs:
    """What the files need of a trained method; the same in every process."""

    audit: LossHistory
    fallback: Optional[np.ndarray]
    source_index: np.ndarray
    target_index: np.ndarray
    features: Optional[np.ndarray]


def compute_outputs(parts: RunParts, with_map: bool = True) -> RunOutputs:
    """Compute with the trained method what the files need; every process takes part and gets the whole result.

    Args:
        parts (RunParts): the run, after training
        with_map (bool): also features of some samples, for the t-SNE map
    """
    method, seed = parts.method, parts.config.seed
    if method.audit is None:
        raise ValueError("the method was trained without an audit of its losses")
    audit = method.audit.merged()
    gaps = np.flatnonzero(audit.visits.cpu().numpy() == 0)
    fallback = None
    if len(gaps):
        fallback = np.full(tuple(audit.probs.shape), 1 / audit.probs.shape[1])
        run = lambda x: (method.predict(x).probs,)  # noqa: E731
        fallback[gaps] = over_domain(run, method, Subset(parts.source, gaps), 64)[0]
    half = MAP_POINTS // 2
    chosen = [choose(len(domain), half, seed) for domain in (parts.source, parts.target)]
    features = None
    if with_map:
        rows = [over_domain(lambda x: (method.backbone(x),), method, Subset(domain, index), 64)[0]
                for domain, index in zip((parts.source, parts.target), chosen)]  # fmt: skip
        features = np.concatenate(rows)
    return RunOutputs(audit, fallback, chosen[0], chosen[1], features)


def write_outputs(parts: RunParts, folder: Path, outputs: RunOutputs) -> Record:
    """Write ``suspects.csv``, ``pred_probs.npy``, ``labels.npy``, ``label_model.json``, ``transition.csv`` and ``tsne.csv``.

    Returns:
        what belongs in ``results.json``: how well wrong labels were found, where they are known, and the estimated rate
    """
    noisy, split = parts.noisy, parts.data.split
    clean = noisy.truth
    model = label_model_of(parts)
    posterior = None if model is None else model.judgement
    if isinstance(noisy, GivenLabels) and len(noisy.columns) > 1:  # annotators who disagree are evidence like the model's
        posterior = noisy.votes if posterior is None else (posterior + noisy.votes) / 2
    audit = audit_labels(outputs.audit, noisy.targets, posterior, outputs.fallback)
    issues = _issues(parts)
    if issues is not None:
        other = np.where(audit.suggested == noisy.targets, FINE, KINDS[-1])  # by training too
        audit = audit._replace(kind=np.where(np.isin(issues.kind, KINDS[:-1]), issues.kind, other), group=issues.group)
    write_suspects(folder / "suspects.csv", noisy.paths, noisy.targets, audit, split, clean)
    results: Record = {} if clean is None else audit_quality(audit, noisy.targets, clean)
    if model is not None:
        model = _after_correction(parts, model)
        low, high = model.rate_interval
        results.update(estimated_rate=model.rate, estimated_rate_std=model.rate_std, estimated_rate_low=low,
                       estimated_rate_high=high, estimated_rate_known=model.rate_known)  # fmt: skip
        keys = "rate rate_std rate_interval rate_known unnamed structure start temperature trace candidates".split()
        facts = {key: getattr(model, key) for key in keys}
        facts["rate_text"] = model.rate_text()
        write_json(folder / "label_model.json", {**facts, "transition": model.transition.tolist()})
        write_transition(folder / "transition.csv", model.transition, split.source_classes)
    if outputs.features is not None:
        group = groups_of(len(outputs.source_index), parts.target.view.targets, outputs.target_index, split.unknown)
        points = tsne(outputs.features, parts.config.seed)
        index = np.r_[outputs.source_index, outputs.target_index]
        write_feature_map(folder / "tsne.csv", FeatureMap(group, index, points[:, 0], points[:, 1]))
    return results


def label_model_of(parts: RunParts) -> Optional[LabelModel]:
    """The method's own estimate, or a new one where the inputs are features that training did not touch."""
    known = getattr(parts.method, "label_model", None)
    inputs = _frozen(parts)
    if known is not None or inputs is None:
        return known
    return estimate_once(inputs, parts.noisy.targets, parts.data.split.num_source, parts.config.seed)


def _after_correction(parts: RunParts, model: LabelModel) -> LabelModel:
    """The rate by the labels before they were corrected, where these are known: the corrected ones agree with their model."""
    inputs, before = _frozen(parts), parts.noisy.before
    if inputs is None or before is None:
        return model
    return estimate_once(inputs, before, parts.data.split.num_source, parts.config.seed).of_labels(parts.noisy.targets)


def _issues(parts: RunParts) -> Optional[LabelIssues]:
    """What an audit of these features finds without training."""
    inputs = _frozen(parts)
    return None if inputs is None else issues_once(inputs, parts.noisy.targets, parts.data.split.num_source, parts.config.seed)


def _frozen(parts: RunParts) -> Optional[np.ndarray]:
    features = parts.source.features
    return None if features is None or len(parts.noisy) > LABEL_MODEL_LIMIT else features.cpu().numpy()
