"""Open-set metrics as functions of arrays; ``python -m tllib_ext.evaluation FILE`` computes them from a file."""

from tllib_ext.evaluation.curves import confusion, oscr, threshold_curve
from tllib_ext.evaluation.files import Predictions, load_split, read_predictions, write_predictions
from tllib_ext.evaluation.further import FURTHER, further_metrics
from tllib_ext.evaluation.openset import DEFINITIONS, ClassRecall, OpenSetEvaluator, OpenSetReport, evaluate

__all__ = ["DEFINITIONS", "FURTHER", "ClassRecall", "OpenSetEvaluator", "OpenSetReport", "Predictions", "confusion", "evaluate",
           "further_metrics", "load_split", "oscr", "read_predictions", "threshold_curve", "write_predictions"]  # fmt: skip
