"""The contract of a data set that ``open_data`` opens by name."""

import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple, Union

from tllib_ext.errors import UserError, closest
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.vision.datasets.types import ImageListLike
from tllib_ext.vision.fetch import Needed, provide

__all__ = ["Data", "DataRequest", "DatasetBuilder", "find_domain", "split_by_classes"]


@dataclass(frozen=True)
class DataRequest:
    """What a builder is called with; see :func:`~tllib_ext.vision.datasets.catalog.open_data` for the fields."""

    name: str
    root: Optional[str] = None
    source: Optional[str] = None
    target: Optional[str] = None
    download: bool = True
    allow_outside: bool = False
    target_unlabelled: bool = False


@dataclass
class Data:
    """Two domains, the label split between them, and the sizes of their images.

    Args:
        name (str), source_name (str), target_name (str): of the data set and its domains
        source, target: image lists with ``samples``, ``classes`` and ``loader``
        split (LabelSplit): the data set's own label sets
        resize (int), crop (int): images are resized to squares of the first side and cropped to the second
        flip (bool): whether a mirrored image is of the same class
        notes (list[str]): messages for the log, e.g. how many files were ignored
    """

    name: str
    source_name: str
    target_name: str
    source: ImageListLike
    target: ImageListLike
    split: LabelSplit
    resize: int = 256
    crop: int = 224
    flip: bool = True
    notes: List[str] = field(default_factory=list)

    def split_of(self, split: Union[str, LabelSplit]) -> LabelSplit:
        """A split by its text, over the classes of both domains; a :class:`LabelSplit` as it is."""
        if isinstance(split, LabelSplit):
            return split
        return LabelSplit.parse(split, list(dict.fromkeys([*self.source.classes, *self.target.classes])))

    @property
    def is_features(self) -> bool:
        """Whether the inputs are frozen features instead of images."""
        return getattr(self.source, "features", None) is not None


class DatasetBuilder:
    """Opens a data set: ``builder(request)`` is a :class:`Data`.

    Any callable from :class:`DataRequest` to :class:`Data` can be registered in
    :data:`~tllib_ext.vision.datasets.DATASETS` or named by an entry point of the group ``tllib_ext.datasets``. A
    subclass implements :meth:`domains` and :meth:`open`; it gets the checks of folder and domains, and grids over all
    pairs of domains work as well.
    """

    #: short name -> domain, e.g. tllib's ``A`` -> ``amazon``.
    letters: Dict[str, str] = {}
    #: what the folder holds, for messages.
    layout = "<domain>/<class>/<image>"

    def __call__(self, request: DataRequest) -> Data:
        if request.root is not None and self.lacking(request.root) is not None:
            self.pair(request.root, request)  # a mistake shows before a download
        root = self.folder(request.root, request.name, request.download)
        return self.open(root, *self.pair(root, request), request)

    def pair(self, root: str, request: DataRequest) -> Tuple[str, str]:
        """Source and target of a request, which exist and differ."""
        domains = self.domains(root)
        if request.source is None or request.target is None:
            raise UserError(f"source and target are needed: which domain is which? domains here: {', '.join(domains)}")
        source, target = (self.find(text, domains) for text in (request.source, request.target))
        if source == target:
            raise UserError(f"source and target are the same domain, {source!r}: choose two of {', '.join(domains)}")
        return source, target

    def find(self, text: str, domains: Sequence[str]) -> str:
        """The domain that ``text`` names."""
        return find_domain(text, domains, self.letters)

    def lacking(self, root: Optional[str]) -> Optional[Needed]:
        """What ``root`` lacks and can be fetched; None if nothing is missing, or nothing can be fetched."""
        return None

    def folder(self, root: Optional[str], name: str, download: bool = True) -> str:
        """The data folder, fetched if that is possible; an error that describes the expected layout if there is none."""
        if root is None:
            raise UserError(f"the data set {name} needs its folder: expected {self.layout} in it")
        needed = self.lacking(root)
        if needed is not None:
            provide([needed], download)
        if not os.path.isdir(root):
            raise UserError(f"no data folder {root}: expected {self.layout} in it; without a folder the embedded data is used")
        return root

    def recognises(self, root: str) -> bool:
        """Whether the folder ``root`` holds this data set, for the name ``auto``."""
        return False

    def domains(self, root: str) -> Sequence[str]:
        """Names of the domains in ``root``."""
        raise NotImplementedError

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        """Read the lists of two domains, which exist and differ."""
        raise NotImplementedError


def find_domain(text: str, domains: Sequence[str], letters: Optional[Dict[str, str]] = None) -> str:
    """A domain by its name, its letter or any unambiguous beginning, in any case.

    Examples::

        >>> [find_domain(text, ["amazon", "dslr"], {"A": "amazon"}) for text in ("A", "AMA", "dslr")]
        ['amazon', 'amazon', 'dslr']
    """
    wanted = text.lower()
    same = [name for name in domains if name.lower() == wanted]
    by_letter = [name for letter, name in (letters or {}).items() if letter.lower() == wanted]
    starting = [name for name in domains if name.lower().startswith(wanted)]
    for found in ([name for name in domains if name == text], same, by_letter, starting):
        if len(found) == 1:
            return found[0]
    if wanted and len(starting) > 1:
        raise UserError(f"domain {text!r} is ambiguous: {', '.join(sorted(starting))}")
    raise UserError(f"unknown domain {text!r}: {closest(text, domains)}")


def split_by_classes(source: ImageListLike, target: ImageListLike) -> LabelSplit:
    """The split of a benchmark if the classes are that benchmark's; else a class is shared if both domains have it."""
    here, there = _present(source), _present(target)
    for preset in PRESETS.values():
        if set(preset.source_classes + preset.target_private) == set(here) | set(there):
            return preset
    if not there:  # an unlabelled target: which classes are shared is unknown
        return LabelSplit(tuple(here))
    shared = tuple(name for name in here if name in there)
    if not shared:
        raise UserError(f"source and target share no class name: {', '.join(here[:5])} … and {', '.join(there[:5])} …")
    private = (tuple(name for name in names if name not in shared) for names in (here, there))
    return LabelSplit(shared, *private)


def _present(dataset: ImageListLike) -> List[str]:
    return [dataset.classes[k] for k in sorted({label for _, label in dataset.samples if label is not None})]
