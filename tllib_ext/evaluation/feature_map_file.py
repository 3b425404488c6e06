"""``tsne.csv``: a two-dimensional map of some source and target features."""

import csv
from pathlib import Path
from typing import NamedTuple, Union

import numpy as np

from tllib_ext.io import atomic_text, read_columns

__all__ = ["GROUPS", "FeatureMap", "read_feature_map", "write_feature_map"]

#: whose sample a point is; ``target`` where the target has no labels
GROUPS = ("source", "target shared", "target unknown", "target")


class FeatureMap(NamedTuple):
    """The columns of ``tsne.csv``: a group's number in :data:`GROUPS`, the sample's index in its domain, the point."""

    group: np.ndarray
    index: np.ndarray
    x: np.ndarray
    y: np.ndarray


def write_feature_map(file: Union[str, Path], feature_map: FeatureMap) -> None:
    """Write ``tsne.csv`` whole: ``group,index,x,y``."""
    with atomic_text(file) as stream:
        writer = csv.writer(stream)
        writer.writerow(FeatureMap._fields)
        names = [GROUPS[g] for g in feature_map.group]
        points = [[f"{value:.4f}" for value in axis] for axis in (feature_map.x, feature_map.y)]
        writer.writerows(zip(names, feature_map.index.tolist(), *points))


def read_feature_map(file: Union[str, Path]) -> FeatureMap:
    """Read what :func:`write_feature_map` wrote."""
    converters = {"group": (GROUPS.index, np.int64), "index": (int, np.int64), "x": (float, np.float64), "y": (float, np.float64)}
    return FeatureMap(**read_columns(file, converters, FeatureMap._fields))
