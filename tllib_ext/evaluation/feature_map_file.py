"""``tsne.csv``: a two-dimensional map of some source and target features."""

import csv
from dataclasses import dataclass
from typing import Callable, Dict, Tuple

import numpy as np
from numpy.typing import DTypeLike

from tllib_ext.io import atomic_text, read_columns
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
    with atomic_text(file) as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        names = [GROUPS[g] for g in feature_map.group]
        points = [[f"{value:.4f}" for value in axis] for axis in (feature_map.x, feature_map.y)]
        writer.writerows(zip(names, feature_map.index.tolist(), *points))


def read_feature_map(file: PathLike) -> FeatureMap:
    """Read what :func:`write_feature_map` wrote."""
    converters: Dict[str, Tuple[Callable[[str], object], DTypeLike]] = {
        "group": (GROUPS.index, np.int64),
        "index": (int, np.int64),
        "x": (float, np.float64),
        "y": (float, np.float64),
    }
    return FeatureMap(**read_columns(file, converters, COLUMNS))
