"""The files below a folder: images, and those that are passed over, which are counted and named."""

import os
from collections import Counter
from pathlib import Path
from typing import List, NoReturn, Sequence, Tuple

from tllib_ext.errors import UserError
from tllib_ext.images import conversion_hint, image_suffixes

__all__ = ["cannot_read", "files_below", "is_image", "passed_over_note", "suffix_counts"]

#: files that a note names.
_NAMED = 20


def cannot_read(error: OSError) -> NoReturn:
    """``onerror`` of :func:`os.walk`."""
    raise UserError(f"cannot read the folder {error.filename}: {error.strerror or error}") from None


def files_below(folder: str) -> Tuple[List[str], List[str]]:
    """The images below a folder, and the other files, both in sorted order; hidden files are neither."""
    walk = os.walk(folder, onerror=cannot_read)
    files = [os.path.join(place, name) for place, _, names in walk for name in names if not name.startswith(".")]
    images = sorted(filter(is_image, files))
    return images, sorted(set(files) - set(images))


def is_image(file: str) -> bool:
    """Whether a file is an image by its suffix."""
    return file.lower().endswith(image_suffixes())


def _suffix(file: str) -> str:
    return Path(file).suffix.lower() or "no suffix"


def suffix_counts(files: Sequence[str]) -> str:
    """How many files of each suffix there are, and what to do with photographs of a format that is not read."""
    counts = Counter(map(_suffix, files))
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:8]
    hint = conversion_hint(counts)
    return ", ".join(f"{count} {suffix}" for suffix, count in shown) + (f"; {hint}" if hint else "")


def passed_over_note(root: str, files: Sequence[str]) -> str:
    """A line for the log about files below ``root`` that are passed over; empty without files."""
    if not files:
        return ""
    images = sum(_suffix(file) in image_suffixes() for file in files)
    beside = f"; {images} of them images beside the class folders, without a class" if images else ""
    named = ", ".join(os.path.relpath(file, root) for file in files[:_NAMED])
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    count = f"{len(files)} file{'s' * (len(files) != 1)}"
    return f"{root}: {count} passed over: {suffix_counts(files)}{beside}. Passed over: {named}{more}"
