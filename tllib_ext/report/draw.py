"""From the files of a run to its plots by name."""

from typing import Dict

import numpy as np
from matplotlib.figure import Figure

from tllib_ext.evaluation.curves import threshold_curve
from tllib_ext.report import plots
from tllib_ext.report.run_files import RunFiles

__all__ = ["draw"]


def draw(run: RunFiles) -> Dict[str, Figure]:
    """Every plot that the run's files have the numbers for."""
    p, split, figures = run.predictions, run.split, {}
    report = run.report
    unknown = p.label == split.unknown if report is not None else None
    figures["density"] = plots.density(p.score, unknown, run.threshold)
    if report is not None:
        curve = threshold_curve(p.label, p.top[:, 0], p.score, split)
        figures["threshold"] = plots.threshold_curve(curve, run.threshold)
        figures["confusion"] = plots.confusion_matrix(report.confusion, split.label_names)
    if run.records:
        figures["metrics"] = plots.metrics_over_training(run.records)
        figures["training"] = plots.training_terms(run.records)
    if run.feature_map is not None:
        figures["tsne"] = plots.feature_map(run.feature_map)
    if run.suspects is not None:
        wrong = run.suspects.is_wrong
        figures["suspects"] = plots.suspicion_histogram(run.suspects.suspicion, wrong)
        if wrong is not None and wrong.any() and not wrong.all():
            figures["suspects_roc"] = plots.suspicion_roc(run.suspects.suspicion, wrong)
    model = run.label_model
    if model is not None:
        if model["trace"]:
            figures["label_model"] = plots.label_model_rounds(model["trace"], model["rate"], model["rate_std"], run.true_rate)
        title = "Labels by true class, estimated, %"
        figures["transition"] = plots.transition_matrix(np.array(model["transition"]), split.source_classes, title)
        realised = run.results.get("realised_transition")
        if run.true_rate is not None and realised is not None:
            title = "The same, as it is, %"
            figures["transition_true"] = plots.transition_matrix(np.array(realised), split.source_classes, title)
    return figures
