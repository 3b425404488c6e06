"""The target model: which target samples are of a known class, of which, and which are of none."""

from tllib_ext.target.model import TargetModel, estimate_target

__all__ = ["TargetModel", "estimate_target"]
