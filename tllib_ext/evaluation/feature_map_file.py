"""``tsne.csv``: a two-dimensional map of some source and target features."""

from dataclasses import dataclass

import numpy as np

from tllib_ext.io import INTEGER, NUMBER, read_columns, write_rows
from tllib_ext.typing import PathLike

__all__ = ["COLUMNS", "GROUPS", "FeatureMap", "read_feature_map", "write_feature_map"]

#: domain and part of a point's sample; ``target`` where the target has no labels
COLUMNS = ("group", "index", "x", "y")
GROUPS = ("source", "target shared", "target unknown", "target")


@dataclass(frozen=True)
class FeatureMap:
    """The columns of ``tsne.csv``: a group's number in :data:`GROUPS`, the sample's index in its domain, the point."""

    group: np.ndarray
    index: np.ndarray
    x: np.ndarray
    y: np.ndarray


def write_feature_map(file: PathLike, feature_map: FeatureMap) -> None:
    """Write ``tsne.csv`` atomically: ``group,index,x,y``."""
    names = [GROUPS[g] for g in feature_map.group]
    points = [[f"{value:.4f}" for value in axis] for axis in (feature_map.x, feature_map.y)]
    write_rows(file, COLUMNS, zip(names, feature_map.index.tolist(), *points))


def read_feature_map(file: PathLike) -> FeatureMap:
    """Read what :func:`write_feature_map` wrote."""
    converters = {"group": (GROUPS.index, np.int64), "index": INTEGER, "x": NUMBER, "y": NUMBER}
    return FeatureMap(**read_columns(file, converters, COLUMNS))
