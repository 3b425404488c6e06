"""What a finished run leaves beside its numbers, in two parts: what needs the model, and what is drawn from files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Union

import numpy as np

from tllib_ext.files import write_json, write_text
from tllib_ext.report.embedding import Embedding, Part, choose, groups_of, tsne, write_embedding
from tllib_ext.report.suspects import write_suspects
from tllib_ext.training.predict import over_domain
from tllib_ext.training.setup import Parts
from tllib_ext.vision.datasets.noisy import write_transition

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
    """Write ``suspects.csv``, ``pred_probs.npy``, ``labels.npy``, ``label_model.json``, ``transition.csv`` and ``tsne.csv``.

    Returns:
        what belongs in ``results.json``: how well wrong labels were found, where they are known, and the estimated rate
    """
    noisy, split = parts.noisy, parts.data.split
    clean = None if parts.args.noise == "none" else noisy.clean_targets
    model = _label_model(parts)
    results: Dict[str, Any] = write_suspects(
        folder / "suspects.csv", noisy.paths, noisy.targets, findings.audit, split, clean, model, findings.fallback,
    )  # fmt: skip
    if model is not None:
        results.update(estimated_rate=model.rate, estimated_rate_std=model.rate_std)
        keys = ("rate", "rate_std", "structure", "start", "temperature", "trace", "candidates")
        facts = {key: getattr(model, key) for key in keys}
        write_json(folder / "label_model.json", {**facts, "transition": model.transition.tolist()})
        write_transition(folder / "transition.csv", model.transition, split.source_classes)
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
    from tllib_ext.labels.belief import estimate_once

    return estimate_once(parts.source.features, parts.noisy.targets, parts.data.split.num_source, parts.args.seed)


def write_report(folder: Union[str, Path]) -> Path:
    """Draw ``plots/*.png`` and ``report.html`` from the files of a finished run; returns the page's path."""
    from tllib_ext.report.draw import draw  # here: a run without a report does not wait for matplotlib
    from tllib_ext.report.html import page
    from tllib_ext.report.runfiles import read_run
    from tllib_ext.report.style import save

    run = read_run(folder)
    plots = run.folder / "plots"
    plots.mkdir(exist_ok=True)
    files = {}
    for name, figure in draw(run).items():
        files[name] = plots / f"{name}.png"
        save(figure, files[name])
    write_text(run.folder / "report.html", page(run, files))
    return run.folder / "report.html"
