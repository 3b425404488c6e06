"""Data of your own: ``<domain>/<class>/<image>``, or frozen features in ``<domain>.npz``."""

import os
from pathlib import Path
from typing import List, Sequence, Tuple

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.builder import Data, DataRequest, DatasetBuilder, split_by_classes
from tllib_ext.vision.datasets.folder_files import cannot_read, is_image
from tllib_ext.vision.datasets.imagelist import FeatureList, ImageFolder

__all__ = ["FolderData", "FeatureData", "folder", "features"]


class FolderData(DatasetBuilder):
    """One folder per domain, one folder per class in it.

    A target is unlabelled if it has no folders, or none that is named like a class of the source: then all images below
    it are read.
    """

    def domains(self, root: str) -> List[str]:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
        return _two_or_more(names, root, self.layout)

    def pair(self, root: str, request: DataRequest) -> Tuple[str, str]:
        """Source and target; a path with a separator names a folder further below ``root``."""
        named = [os.path.normpath(text) for text in (request.source or "", request.target or "")]
        if not any(os.sep in text for text in named):
            return super().pair(root, request)
        for text in named:
            if text.split(os.sep)[0] in ("..", "") or not os.path.isdir(os.path.join(root, text)):
                raise UserError(f"there is no folder {text} in {root}: expected the paths of source and target below it")
        return named[0], named[1]

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        first = ImageFolder(os.path.join(root, source))
        if not first.classes:  # the images are not in class folders
            raise UserError(f"the source {source} has no class folders: expected {root}/{source}/<class>/<image>")
        second, note = _target(os.path.join(root, target), first.classes, not request.target_unlabelled)
        notes = [line for line in (first.note, note, second.note) if line]
        return Data(request.name, source, target, first, second, split=split_by_classes(first, second), notes=notes)


def _target(folder: str, classes: Sequence[str], labelled: bool) -> Tuple[ImageFolder, str]:
    """The images of a target, and a line for the log if its folders are not taken for classes."""
    if not labelled:
        return ImageFolder(folder, labelled=False), ""
    names = [name for name in next(os.walk(folder, onerror=cannot_read))[1] if not name.startswith(".")]
    like_classes = sorted(set(names) & set(classes))
    spelled = {_letters(name): name for name in classes}
    if names and not like_classes:
        for name in sorted(names):
            if _letters(name) in spelled:
                raise UserError(
                    f"{folder}/{name} is spelled otherwise than the source's class {spelled[_letters(name)]}: rename it, or give "
                    "target_unlabelled=True if the target has no labels"
                )
        target = ImageFolder(folder, labelled=False)
        shown = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
        return target, f"{folder} is unlabelled: none of its folders ({shown}) is named like a class of the source; " \
                       f"all {len(target)} images below it are read"  # fmt: skip
    target = ImageFolder(folder)
    loose = [file for file in target.passed_over if os.path.dirname(file) == folder and is_image(file)]
    if len(like_classes) == 1 and loose:
        count = f"{len(loose)} image{'s' * (len(loose) != 1)}"
        raise UserError(
            f"{folder} holds {count} and a folder {like_classes[0]}, named like a class of the source, which can be read in two "
            f"ways: if the target has no labels, give target_unlabelled=True; if it has, move the {count} into class folders"
        )
    return target, ""


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


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
