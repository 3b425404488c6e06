"""Data sets that tllib lacks, as subclasses of its ``ImageList``: ``Glyphs`` and ``folder``.

The two classes are made when they are first asked for, because their base class is tllib's.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, List, Optional

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.vision.datasets import glyphs
from tllib_ext.vision.datasets.builder import find_domain
from tllib_ext.vision.datasets.folders import folder as folder_data
from tllib_ext.vision.datasets.imagelist import ImageFolder
from tllib_ext.vision.datasets.types import Sample

__all__ = ["GlyphsList", "FolderList", "dataset_class"]


class GlyphsList:
    """What makes tllib's ``ImageList`` the Glyphs data set.

    ``task`` is a domain by name, letter or beginning; ``download`` draws the pictures into ``root`` if they
    are not there.
    """

    CLASSES = list(glyphs.CLASSES)
    SPLIT = glyphs.SPLIT
    image_list = {letter: f"image_list/{domain}.txt" for letter, domain in glyphs.DOMAINS.items()}

    def __init__(self, root: str, task: str, download: Optional[bool] = True, **kwargs: Any):
        domain = find_domain(task, self.domains(), glyphs.DOMAINS)
        if download:
            glyphs.write_glyphs(root)
        file = Path(root, "image_list", f"{domain}.txt")
        super().__init__(root, self.CLASSES, data_list_file=str(file), **kwargs)  # type: ignore[call-arg]

    @classmethod
    def domains(cls) -> List[str]:
        """All domains, as tllib's data sets list them."""
        return list(glyphs.DOMAINS.values())


class FolderList:
    """What makes tllib's ``ImageList`` read ``root/domain/class/image``.

    The labels are those of all class folders of all domains, so that every task counts alike.
    """

    def __init__(self, root: str, task: str, download: Optional[bool] = True, **kwargs: Any):
        domains = folder_data.domains(folder_data.folder(root, "folder"))
        domain = find_domain(task, domains)
        classes = sorted({name for place in domains for name in _classes(Path(root, place))})
        self._samples = ImageFolder(Path(root, domain), classes).samples
        if self._samples[0][1] is None:
            raise UserError(f"{domain} has no class folders, and tllib's scripts need labels: expected {folder_data.layout}")
        super().__init__(root, classes, data_list_file=str(Path(root, domain)), **kwargs)  # type: ignore[call-arg]

    def parse_data_file(self, file_name: str) -> List[Sample]:
        """tllib's hook for reading a list file; here it is what was found in the folders."""
        return self._samples


def _classes(place: Path) -> List[str]:
    try:
        return ImageFolder(place).classes
    except UserError:  # a folder without images, e.g. of lists or logs, beside the domains
        return []


@lru_cache(maxsize=None)
def dataset_class(name: str) -> type:
    """The class ``Glyphs`` or ``folder`` on top of tllib's ``ImageList``."""
    readers = {"Glyphs": GlyphsList, "folder": FolderList}
    image_list = compat.tllib("vision.datasets").ImageList
    return type(name, (readers[name], image_list), {"__module__": __name__, "__doc__": readers[name].__doc__})


def __getattr__(name: str) -> type:
    # By this name pickle finds the class in a process that was not forked.
    if name in ("Glyphs", "folder"):
        return dataset_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
