"""Estimates of what noisy labels must have been, from features and labels alone."""

from tllib_ext.labels.transition import LabelModel, estimate_labels

__all__ = ["LabelModel", "estimate_labels"]
