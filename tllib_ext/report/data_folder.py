"""The images behind a run: links and thumbnails of the files inside its data folder, names of everything else.

``predictions.csv`` and ``suspects.csv`` may come from somebody else. A path in them that leads out of the data folder is
shown as a name; the file is not opened.
"""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, Optional, Sequence
from urllib.parse import quote

from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.io import cache_dir
from tllib_ext.typing import Record

__all__ = ["DataFolder", "thumbnail"]

#: pixels of a thumbnail's longer side; images decoded between two looks at the budget.
_SIDE, _AT_ONCE = 112, 64


class DataFolder:
    """What a page may show of the images of a run.

    Args:
        config (dict): ``config.json`` of the run, whose ``root`` is the data folder; without it the embedded data
        run (Path): the run folder, which links are relative to
    """

    def __init__(self, config: Record, run: Path):
        root = config.get("root")
        if root is None and config.get("data") == "Glyphs":
            root = cache_dir() / "glyphs"
        # Features have names, not images.
        self.root = os.path.abspath(root) if root and config.get("data") != "features" else None
        self._run = os.path.abspath(run)

    def find(self, path: str) -> Optional[str]:
        """The absolute path of an existing file inside the folder, None for any other path."""
        full = os.path.abspath(path) if path else ""
        return full if self._holds(full) and os.path.isfile(full) else None

    def name(self, path: str) -> str:
        """The path below the data folder, or as it is if it leads elsewhere."""
        full = os.path.abspath(path) if path else ""
        return os.path.relpath(full, self.root) if self._holds(full) else path

    def _holds(self, full: str) -> bool:
        return self.root is not None and full.startswith(os.path.join(self.root, ""))

    def link(self, path: str) -> str:
        """The address of the image relative to the run folder, empty if there is none."""
        full = self.find(path)
        return "" if full is None else quote(os.fsencode(os.path.relpath(full, self._run)))

    def thumbnails(self, paths: Sequence[str], count: int, size: int) -> Dict[str, bytes]:
        """Thumbnails of the first ``count`` readable paths, the most important first, of ``size`` bytes together at most."""
        files = {path: full for path in dict.fromkeys(paths) if (full := self.find(path)) is not None}
        chosen = list(files)[:count]
        made: Dict[str, bytes] = {}
        # Pillow decodes outside of Python's lock.
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for start in range(0, len(chosen), _AT_ONCE):
                part = chosen[start : start + _AT_ONCE]
                for path, data in zip(part, pool.map(thumbnail, [files[path] for path in part])):
                    size -= len(data or b"")
                    if size < 0:
                        return made
                    if data is not None:
                        made[path] = data
        return made


def thumbnail(path: str) -> Optional[bytes]:
    """A small JPEG of an image file, None if it cannot be read."""
    try:
        image = load_image(path, max_side=2 * _SIDE)
    except UserError:
        return None
    image.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=75)
    return stream.getvalue()
