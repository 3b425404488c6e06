"""Data of your own: ``<domain>/<class>/<image>``, or frozen features in ``<domain>.npz``."""

import os
from pathlib import Path
from typing import List

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.builder import Data, DataRequest, DatasetBuilder, split_by_classes
from tllib_ext.vision.datasets.imagelist import FeatureList, ImageFolder

__all__ = ["FolderData", "FeatureData", "folder", "features"]


class FolderData(DatasetBuilder):
    """One folder per domain, one folder per class in it; a target without class folders is unlabelled."""

    def domains(self, root: str) -> List[str]:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
        return _two_or_more(names, root, self.layout)

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        first, second = (ImageFolder(os.path.join(root, domain)) for domain in (source, target))
        if not first.classes:  # the images are not in class folders
            raise UserError(f"the source {source} has no class folders: expected {root}/{source}/<class>/<image>")
        notes = [dataset.note for dataset in (first, second) if dataset.note]
        return Data(request.name, source, target, first, second, split=split_by_classes(first, second), notes=notes)


class FeatureData(DatasetBuilder):
    """One ``.npz`` per domain with ``features, labels, classes[, paths]``."""

    layout = "<domain>.npz with features, labels, classes[, paths]"

    def recognises(self, root: str) -> bool:
        return any(Path(root).glob("*.npz"))

    def domains(self, root: str) -> List[str]:
        return _two_or_more(sorted(file.stem for file in Path(root).glob("*.npz")), root, self.layout)

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        first, second = (FeatureList(os.path.join(root, f"{domain}.npz")) for domain in (source, target))
        widths = first.features.shape[1], second.features.shape[1]
        if widths[0] != widths[1]:
            raise UserError(f"features of {source} are {widths[0]} wide, those of {target} {widths[1]}: expected one backbone")
        return Data(request.name, source, target, first, second, split=split_by_classes(first, second))


def _two_or_more(names: List[str], root: str, layout: str) -> List[str]:
    if len(names) < 2:
        raise UserError(f"{root} holds {len(names)} domain(s), two are needed: expected {root}/{layout}")
    return names


folder, features = FolderData(), FeatureData()
