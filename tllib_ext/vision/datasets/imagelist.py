"""Readers of image lists and folders, with tllib's attributes: ``samples``, ``classes``, ``loader``."""

import os
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.images import IMAGE_SUFFIXES, load_image

__all__ = ["ImageList", "ImageFolder", "FeatureList"]

Sample = Tuple[str, Optional[int]]


class ImageList:
    """Images named by a list file, one ``path label`` per line, as in tllib.

    Args:
        root (str): folder that the paths are relative to
        classes (sequence of str): names of the labels 0, 1, …
        list_file (str): the list
        loader (callable): path -> PIL image
    """

    def __init__(
        self,
        root: Union[str, os.PathLike],
        classes: Sequence[str],
        list_file: Union[str, os.PathLike],
        loader: Callable[[str], Any] = load_image,
        allow_outside: bool = False,
    ):
        self.root, self.classes, self.loader = str(root), list(classes), loader
        self.samples: List[Sample] = _read_list(Path(list_file), str(root), len(self.classes), allow_outside)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tuple[Any, Optional[int]]:
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
        path, _, label = line.strip().rpartition(" ")
        if not path or not label.isascii() or not label.isdigit() or len(label) > 9:
            raise UserError(f"{list_file}:{number}: expected 'path label', e.g. 'amazon/images/mug/1.jpg 3', found {line[:80]!r}")
        if int(label) >= num_classes:
            raise UserError(f"{list_file}:{number}: label {label}, but there are {num_classes} classes (0…{num_classes - 1})")
        path = path.strip()
        if "\0" in path:
            raise UserError(f"{list_file}:{number}: a path with a NUL byte, {path[:80]!r}")
        if not allow_outside and (os.path.isabs(path) or ".." in path.replace("\\", "/").split("/")):
            raise UserError(f"{list_file}:{number}: {path!r} leads outside of {root}; add --allow-outside if you trust the list")
        samples.append((os.path.join(root, path), int(label)))
    if not samples:
        raise UserError(f"the image list {list_file} is empty: expected lines 'path label'")
    return samples


class ImageFolder:
    """``root/class/…/image`` of any names; a folder of images without class folders is unlabelled.

    Args:
        root (str): the domain's folder
        classes (sequence of str, optional): names in the order of the labels; default: the sorted class folders
    """

    def __init__(
        self,
        root: Union[str, os.PathLike],
        classes: Optional[Sequence[str]] = None,
        loader: Callable[[str], Any] = load_image,
    ):
        root = Path(root)
        self.root, self.loader = str(root), loader
        folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
        filled = {name: images for name in folders if (images := _images_below(root / name))}
        loose = [] if filled else _images_below(root)
        if not filled and not loose:
            raise UserError(f"no images in {root}: expected {root}/<class>/<image> ({', '.join(IMAGE_SUFFIXES)})")
        self.classes = list(classes) if classes is not None else sorted(filled)
        labels = {name: label for label, name in enumerate(self.classes)}
        self.samples: List[Sample] = [(path, None) for path in loose]
        self.samples += [(path, labels[name]) for name in filled if name in labels for path in filled[name]]

    @property
    def labelled(self) -> bool:
        """Whether the images stand in class folders."""
        return bool(self.classes)

    __len__ = ImageList.__len__
    __getitem__ = ImageList.__getitem__


def _images_below(folder: Path) -> List[str]:
    found = (
        os.path.join(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
    )
    return sorted(found)


class FeatureList:
    """Frozen features of a domain from a ``.npz`` with ``features, labels, classes[, paths]``.

    ``samples`` hold the paths (or ``row:N``), ``features`` the matrix in the same order; the loader gives a row.
    """

    def __init__(self, file: Union[str, os.PathLike]):
        self.root = str(file)
        arrays = _read_arrays(file, ("features", "labels", "classes", "paths"))
        lacking = [key for key in ("features", "classes") if key not in arrays]
        if lacking:
            raise UserError(f"{file} has no {' and no '.join(lacking)}: expected features, labels, classes[, paths]")
        features, labels = arrays["features"], arrays.get("labels")
        if features.ndim != 2 or features.dtype.kind not in "fiu" or not len(features):
            raise UserError(f"{file}: features of shape {features.shape} {features.dtype}, expected (N, D) numbers")
        with np.errstate(over="ignore"):  # too large for float32 is infinite, and said so below
            self.features = np.ascontiguousarray(features, dtype=np.float32)
        if not np.isfinite(self.features).all():
            raise UserError(f"{file}: the features hold NaN or infinite values")
        if np.abs(self.features).max(initial=0) > 1e18:
            raise UserError(f"{file}: features beyond 1e18, whose squares are no float32 numbers: scale them")
        self.classes = [str(name) for name in arrays["classes"].ravel()]
        if labels is not None:
            good = labels.shape == (len(features),) and labels.dtype.kind in "iu"
            if not good or (len(labels) and (labels.min() < 0 or labels.max() >= len(self.classes))):
                raise UserError(f"{file}: labels must be {len(features)} whole numbers in 0…{len(self.classes) - 1}")
        names = arrays["paths"] if "paths" in arrays else np.array([f"row:{row}" for row in range(len(features))])
        if names.shape != (len(features),):
            raise UserError(f"{file}: {names.size} paths for {len(features)} features")
        given = [None] * len(features) if labels is None else labels.tolist()
        self.samples: List[Sample] = list(zip(map(str, names), given))
        self.loader = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tuple[Any, Optional[int]]:
        return self.features[index], self.samples[index][1]


def _read_arrays(file: Union[str, os.PathLike], names: Sequence[str]) -> Dict[str, np.ndarray]:
    """The named arrays of a ``.npz``, as far as it has them; nothing in it is unpickled."""
    try:
        if os.path.isfile(file) and zipfile.is_zipfile(file):
            # A small zip can stand for more than memory holds: ask before unpacking.
            with zipfile.ZipFile(file) as archive:
                size = sum(part.file_size for part in archive.infolist() if part.filename.removesuffix(".npy") in names)
            if size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                raise MemoryError(f"it unpacks to {size >> 30} GiB, more than this machine's memory")
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as data:
            return {name: data[name] for name in names if name in data.files}
    except Exception as error:  # a zip or npy header can fail in many ways, none of them ours to sort
        raise UserError(f"cannot read features from {file}: {error}") from None
