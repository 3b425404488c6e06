"""The target model: which target samples are of a known class, of which, and which are of none."""

from tllib_ext.target.model import TargetModel, class_probabilities, estimate_target

__all__ = ["TargetModel", "class_probabilities", "estimate_target"]
