"""From a folder, a data set's name and two domains to two image lists and a label split."""

import logging
from typing import Optional

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets import DATASETS
from tllib_ext.vision.datasets.builder import Data, DataRequest, DatasetBuilder
from tllib_ext.vision.datasets.downloads import lacking_data, named_like
from tllib_ext.vision.datasets.folders import FolderData
from tllib_ext.vision.datasets.own import dataset_builder

__all__ = ["open_data", "recognise"]

log = logging.getLogger(__name__)


def open_data(
    root: Optional[str] = None, name: str = "auto", source: Optional[str] = None, target: Optional[str] = None,
    split: Optional[str] = None, download: bool = True, allow_outside: bool = False,
    target_unlabelled: bool = False,
) -> Data:  # fmt: skip
    """Find the data, its two domains and the label split.

    Args:
        root (str, optional): data folder; None is the embedded data set
        name (str): one of :data:`~tllib_ext.vision.datasets.DATASETS`; ``auto`` recognises the layout
        source (str), target (str): domains, see :func:`~tllib_ext.vision.datasets.builder.find_domain`
        split (str, optional): preset or ``a/b/c``; default: the benchmark's, or by the class names of the two domains
        download (bool): fetch a known data set whose folder is absent or empty. Default: True
        allow_outside (bool): let a list file name images outside of ``root``
        target_unlabelled (bool): of own folders: all images below the target's folder are read and have no label, whatever
            its subfolders are called. Default: False, which decides by their names
    """
    name = recognise(root) if name == "auto" else name
    builder = dataset_builder(name)
    if target_unlabelled and not isinstance(builder, FolderData):
        raise UserError(f"target_unlabelled=True is for own folders, the data set is {name}: leave it out")
    data = builder(DataRequest(name, root, source, target, download, allow_outside, target_unlabelled))
    if split is not None:
        data.split = data.split_of(split)
    for note in data.notes:
        log.warning(note)
    return data


def recognise(root: Optional[str]) -> str:
    """The name of the data set in ``root``, by its files; ``folder`` if no data set recognises it.

    A folder that is absent or empty is the data set that it is named like, if that can be fetched.
    """
    if root is None:
        return "Glyphs"
    name = named_like(root)
    if name is not None and lacking_data(name, root) is not None:
        return name
    DatasetBuilder().folder(root, "folder")
    for name in DATASETS:
        try:
            builder = DATASETS.get(name)
        except UserError:  # a package that cannot be imported: an error when its data set is asked for by name
            continue
        if isinstance(builder, DatasetBuilder) and builder.recognises(root):
            return name
    return "folder"
