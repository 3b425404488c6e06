"""Readers of image lists and folders, with tllib's attributes: ``samples``, ``classes``, ``loader``."""

import os
import zipfile
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
from PIL.Image import Image

from tllib_ext.errors import UserError, visible
from tllib_ext.images import image_suffixes, load_image
from tllib_ext.io import check_regular
from tllib_ext.typing import PathLike
from tllib_ext.vision.datasets.folder_files import cannot_read, files_below, passed_over_note, suffix_counts
from tllib_ext.vision.datasets.types import Loader, Sample

__all__ = ["ImageList", "ImageFolder", "FeatureList"]

#: classes of a file of features; a few bytes can claim any number of empty names
_CLASSES = 1_000_000


class ImageList:
    """Images named by a list file, one ``path label`` per line, as in tllib.

    Args:
        root (str): folder that the paths are relative to
        classes (sequence of str): names of the labels 0, 1, …
        list_file (str): the list
        loader (callable): path -> PIL image
        allow_outside (bool): whether a path may lead outside of ``root``. Default: False
    """

    def __init__(
        self, root: PathLike, classes: Sequence[str], list_file: PathLike, loader: Loader = load_image,
        allow_outside: bool = False,
    ):  # fmt: skip
        self.root, self.classes, self.loader = str(root), list(classes), loader
        self.samples: List[Sample] = _read_list(Path(list_file), str(root), len(self.classes), allow_outside)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tuple[Image, Optional[int]]:
        path, label = self.samples[index]
        return self.loader(path), label


def _read_list(list_file: Path, root: str, num_classes: int, allow_outside: bool) -> List[Sample]:
    try:
        lines = list_file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError as error:
        raise UserError(f"cannot read the image list {list_file}: {error.strerror}") from None
    samples: List[Sample] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        path, label = (text.strip() for text in line.strip().rpartition(" ")[::2])
        problem = None
        if not path or not label.isascii() or not label.isdigit() or len(label) > 9:
            problem = f"expected 'path label', e.g. 'amazon/images/mug/1.jpg 3', found {line[:80]!r}"
        elif int(label) >= num_classes:
            problem = f"label {label}, but there are {num_classes} classes (0…{num_classes - 1})"
        elif "\0" in path:
            problem = f"a path with a NUL byte, {path[:80]!r}"
        elif not allow_outside and (os.path.isabs(path) or ".." in path.replace("\\", "/").split("/")):
            remedy = "if you trust the list, allow it (allow_outside=True, --allow-outside)"
            problem = f"{path!r} leads outside of {root}; {remedy}"
        if problem:
            raise UserError(f"{list_file}:{number}: {problem}")
        samples.append((os.path.join(root, path), int(label)))
    if not samples:
        raise UserError(f"the image list {list_file} is empty: expected lines 'path label'")
    return samples


class ImageFolder(ImageList):
    """``root/class/…/image`` of any names; a folder of images without class folders is unlabelled.

    A class folder without an image, or one that cannot be read, is an error: without it the class would be missing, and
    the same class of the other domain would count as unknown.

    Args:
        root (str): the domain's folder
        classes (sequence of str, optional): names in the order of the labels; default: the sorted class folders
        loader (callable): path -> PIL image
        labelled (bool): whether its folders are classes; if not, all images below it have no label. Default: True
    """

    def __init__(
        self, root: PathLike, classes: Optional[Sequence[str]] = None, loader: Loader = load_image, labelled: bool = True
    ):
        self.root, self.loader, suffixes = str(root), loader, ", ".join(image_suffixes())
        #: files that are not read: no images by their suffix, or beside the class folders
        self.passed_over: List[str] = []
        _, folders, beside = next(os.walk(self.root, onerror=cannot_read))
        names = [name for name in sorted(folders) if not name.startswith(".") and (classes is None or name in classes)]
        names = names if labelled else []
        found = {name: files_below(os.path.join(self.root, name)) for name in names}
        self.samples = []
        if any(images for images, _ in found.values()):
            self.classes = list(found if classes is None else classes)
            for name, (images, other) in found.items():
                if not images:
                    there = f"its files are {suffix_counts(other)}" if other else "it is empty"
                    remedy = f"remove the folder, or put images ({suffixes}) there"
                    raise UserError(f"no images in {os.path.join(self.root, name)}: {there}; {remedy}")
                self.passed_over += other
                self.samples += [(path, self.classes.index(name)) for path in images]
            self.passed_over += [os.path.join(self.root, name) for name in sorted(beside) if not name.startswith(".")]
        else:
            self.classes = list(classes or [])
            loose, self.passed_over = files_below(self.root)
            if not loose:
                there = suffix_counts(self.passed_over) or "no files"
                raise UserError(f"no images in {self.root} ({there}): expected {self.root}/<class>/<image> ({suffixes})")
            self.samples += [(path, None) for path in loose]

    @property
    def note(self) -> str:
        """A line for the log about the files that are passed over; empty if there are none."""
        return passed_over_note(self.root, self.passed_over)


class FeatureList:
    """Frozen features of a domain from a ``.npz`` file with ``features, labels, classes[, paths]``.

    ``samples`` hold the paths (or ``row:N``), ``features`` the matrix in the same order.
    """

    def __init__(self, file: PathLike):
        self.root = str(file)
        arrays = _read_arrays(file, ("features", "labels", "classes", "paths"))
        lacking = [key for key in ("features", "classes") if key not in arrays]
        if lacking:
            raise UserError(f"{file} has no {' and no '.join(lacking)}: expected features, labels, classes[, paths]")
        features, labels = arrays["features"], arrays.get("labels")
        if features.ndim != 2 or features.dtype.kind not in "fiu" or not features.size:
            raise UserError(f"{file}: features of shape {features.shape} {features.dtype}, expected (N, D) numbers")
        with np.errstate(over="ignore"):  # infinite in float32: reported below
            self.features = np.ascontiguousarray(features, dtype=np.float32)
        if not np.isfinite(self.features).all():
            raise UserError(f"{file}: the features hold NaN or infinite values")
        if np.abs(self.features).max(initial=0) > 1e18:
            raise UserError(f"{file}: features beyond 1e18, whose squares overflow float32: scale them")
        if arrays["classes"].size > _CLASSES:
            raise UserError(f"{file}: {arrays['classes'].size} classes, expected at most {_CLASSES}")
        self.classes = [_text(name, file, "classes") for name in arrays["classes"].ravel()]
        if labels is not None:
            whole = labels.shape == (len(features),) and labels.dtype.kind in "iu"
            if not whole or labels.min() < 0 or labels.max() >= len(self.classes):
                raise UserError(f"{file}: labels must be {len(features)} whole numbers in 0…{len(self.classes) - 1}")
        names = arrays.get("paths", np.array([f"row:{row}" for row in range(len(features))]))
        if names.shape != (len(features),):
            raise UserError(f"{file}: {names.size} paths for {len(features)} features")
        given = [None] * len(features) if labels is None else labels.tolist()
        self.samples: List[Sample] = [(_text(name, file, "paths"), label) for name, label in zip(names, given)]

    def loader(self, path: str) -> Image:
        """Raises: there are features and no images."""
        raise UserError(f"{self.root} holds features: there is no image {path} to read")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tuple[np.ndarray, Optional[int]]:
        return self.features[index], self.samples[index][1]


def _text(name: object, file: PathLike, where: str) -> str:
    """A name as text; a character that no file can hold (half of a pair) is refused before anything is made of it."""
    text = str(name)
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UserError(f"{file}: {where} hold {visible(text)[:80]!r}, which is not valid Unicode: rename it") from None
    return text


def _read_arrays(file: PathLike, names: Sequence[str]) -> Dict[str, np.ndarray]:
    """The named arrays of a ``.npz``, as far as it has them; nothing in it is unpickled."""
    check_regular(file)
    try:
        if os.path.isfile(file) and zipfile.is_zipfile(file):
            # A small zip can unpack to more than memory holds: read the sizes first.
            with zipfile.ZipFile(file) as archive:
                size = sum(part.file_size for part in archive.infolist() if part.filename.removesuffix(".npy") in names)
            if size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                raise MemoryError(f"it unpacks to {size >> 30} GiB, more than this machine's memory")
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as data:
            return {name: data[name] for name in names if name in data.files}
    except Exception as error:  # a damaged zip or npy header can raise anything
        raise UserError(f"cannot read features from {file}: {error}") from None
