"""What a finished run leaves beside its numbers, in two parts: what needs the model, and what is drawn from files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np

from tllib_ext.report.embedding import Embedding, Part, choose, groups_of, tsne, write_embedding
from tllib_ext.report.suspects import write_suspects
from tllib_ext.training.predict import over_domain
from tllib_ext.training.setup import Parts

__all__ = ["Findings", "gather", "write_findings", "write_report"]

#: points of the t-SNE map: more take longer and show less.
MAP_POINTS = 800
#: the label model is fitted for lists up to this length: seconds, not minutes.
LABEL_MODEL_LIMIT = 20_000


@dataclass
class Findings:
    """What the files need of a trained method; the same in every process."""

    audit: Any
    fallback: Optional[np.ndarray]
    source_index: np.ndarray
    target_index: np.ndarray
    features: Optional[np.ndarray]


def gather(parts: Parts, with_map: bool = True) -> Findings:
    """Ask the trained method what the files need; every process takes part and gets the whole answer.

    Args:
        parts (Parts): the run, after training
        with_map (bool): also features of some samples, for the t-SNE map
    """
    method, seed = parts.method, parts.args.seed
    audit = method.audit.merged()
    gaps = np.flatnonzero(audit.visits.cpu().numpy() == 0)
    fallback = None
    if len(gaps):
        fallback = np.full(tuple(audit.probs.shape), 1 / audit.probs.shape[1])
        run = lambda x: (method.predict(x).probs,)  # noqa: E731
        fallback[gaps] = over_domain(run, method, Part(parts.source, gaps), 64)[0]
    half = MAP_POINTS // 2
    chosen = [choose(len(domain), half, seed) for domain in (parts.source, parts.target)]
    features = None
    if with_map:
        rows = [over_domain(lambda x: (method.backbone(x),), method, Part(domain, index), 64)[0]
                for domain, index in zip((parts.source, parts.target), chosen)]  # fmt: skip
        features = np.concatenate(rows)
    return Findings(audit, fallback, *chosen, features)


def write_findings(parts: Parts, folder: Path, findings: Findings) -> Dict[str, Any]:
    """Write ``suspects.csv``, ``pred_probs.npy``, ``labels.npy`` and ``tsne.csv``; returns what belongs in ``results.json``."""
    noisy, split = parts.noisy, parts.data.split
    clean = None if parts.args.noise == "none" else noisy.clean_targets
    results = write_suspects(
        folder / "suspects.csv", noisy.paths, noisy.targets, findings.audit, split, clean, _label_model(parts), findings.fallback,
    )  # fmt: skip
    if findings.features is not None:
        group = groups_of(len(findings.source_index), parts.target.view.targets, findings.target_index, split.unknown)
        points = tsne(findings.features, parts.args.seed)
        index = np.r_[findings.source_index, findings.target_index]
        write_embedding(folder / "tsne.csv", Embedding(group, index, points[:, 0], points[:, 1]))
    return results


def _label_model(parts: Parts) -> Any:
    """The method's own estimate, or a new one where the inputs are features that training did not touch."""
    known = getattr(parts.method, "label_model", None)
    if known is not None or parts.source.features is None or len(parts.noisy) > LABEL_MODEL_LIMIT:
        return known
    from tllib_ext.labels import estimate_labels

    return estimate_labels(parts.source.features, parts.noisy.targets, parts.data.split.num_source, parts.args.seed)


def write_report(folder: Path) -> None:
    """Draw the plots and the page from the files of a finished run."""
