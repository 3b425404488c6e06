r"""Glyphs, the embedded data set: 31 letters and digits in three domains, drawn when they are first used.

There is nothing to download, drawing takes a few seconds, and the files have the layout of tllib's image lists, as
Office-31's have. The domains differ in the origin of the picture: ``print`` (type on paper), ``hand`` (pen strokes) and
``scene`` (a sign in the street: texture, colour, perspective, noise).
"""

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional, Tuple, Union

from tqdm import tqdm

from tllib_ext.errors import UserError
from tllib_ext.io import cache_dir, file_lock
from tllib_ext.split import LabelSplit
from tllib_ext.typing import Record
from tllib_ext.vision.datasets.benchmarks import Benchmark
from tllib_ext.vision.datasets.builder import Data, DataRequest
from tllib_ext.vision.datasets.glyph_render import render

__all__ = ["CLASSES", "DOMAINS", "SPLIT", "RESIZE", "CROP", "FLIP", "PER_CLASS", "write_glyphs", "GlyphsData", "glyphs"]

#: the characters drawn, in the order of :data:`CLASSES`. Left out: 0 1 5 6 8, which a letter resembles.
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ23479"
#: names of the labels 0..30.
CLASSES: Tuple[str, ...] = tuple(f"{'digit' if c.isdigit() else 'letter'}_{c}" for c in CHARACTERS)
#: letter on the command line -> name of a domain.
DOMAINS: Dict[str, str] = {"P": "print", "H": "hand", "S": "scene"}
#: default label sets over :data:`CLASSES`, with A-J shared, K-T in the source only, the rest unknown.
SPLIT = "10/10/11"
#: pictures are resized to this side, then cropped to :data:`CROP` (at random in training, centred in evaluation).
RESIZE, CROP = 36, 32
#: a mirrored letter is another letter, or none.
FLIP = False
#: pictures of a class in a domain.
PER_CLASS = 50

#: increased whenever the pixels change, so that a folder written by an older version is drawn again.
VERSION = 1
MARKER = "glyphs.json"


def write_glyphs(root: Union[str, Path], seed: int = 0, progress: bool = True) -> Path:
    r"""Draw the data set into ``root``, once.

    The data is written beside ``root`` and renamed at the end, so that ``root`` is either complete or absent. A complete
    folder is left as it is; one of another version or seed is replaced; a folder with other contents is an error.

    Args:
        root (str or Path): the folder to make; ``root/image_list/print.txt`` has lines ``print/images/letter_A/0001.png 0``
        seed (int, optional): another seed gives other pictures. Default: 0
        progress (bool, optional): show a progress bar. Default: True
    """
    root = Path(root)
    if seed < 0:
        raise UserError(f"seed {seed} of the glyphs: expected 0 or more")
    contents = {"data": "Glyphs", "version": VERSION, "seed": seed, "classes": len(CLASSES), "per_class": PER_CLASS}
    if _marker(root) == contents:
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        _draw(draft, seed, progress)
        (draft / MARKER).write_text(json.dumps(contents, indent=1) + "\n")
        draft.chmod(0o755)  # mkdtemp makes folders that are private
        if _marker(root) != contents:  # unless another process was faster
            shutil.rmtree(root, ignore_errors=True)
            os.replace(draft, root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def _marker(root: Path) -> Record:
    """The marker file of ``root``: empty if the folder is absent or empty, an error if it holds something else."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return {}
    try:
        contents = json.loads((root / MARKER).read_text())
        if contents["data"] != "Glyphs":
            raise KeyError
        return contents
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{root} exists and does not hold Glyphs (no valid {MARKER}): name another folder or remove it") from None


def _draw(root: Path, seed: int, progress: bool) -> None:
    """Pictures and image lists of the three domains."""
    (root / "image_list").mkdir()
    total = len(DOMAINS) * len(CLASSES) * PER_CLASS
    with tqdm(total=total, desc="drawing Glyphs", unit="image", disable=None if progress else True) as bar:
        for number, domain in enumerate(DOMAINS.values()):
            lines: List[str] = []
            for label, (name, char) in enumerate(zip(CLASSES, CHARACTERS)):
                folder = root / domain / "images" / name
                folder.mkdir(parents=True)
                for i in range(1, PER_CLASS + 1):
                    render(char, domain, (seed, number, label, i)).save(folder / f"{i:04d}.png")
                    lines.append(f"{domain}/images/{name}/{i:04d}.png {label}\n")
                bar.update(PER_CLASS)
            (root / "image_list" / f"{domain}.txt").write_text("".join(lines))


class GlyphsData(Benchmark):
    """The builder ``Glyphs``: draws the data set where it is not there yet."""

    def __call__(self, request: DataRequest) -> Data:
        return super().__call__(replace(request, source=request.source or "P", target=request.target or "S"))

    def folder(self, root: Optional[str], name: str, download: bool = True) -> str:
        return root if root is not None else str(cache_dir() / "glyphs")

    def recognises(self, root: str) -> bool:
        return (Path(root) / MARKER).exists()

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        place = Path(root)
        if not self.recognises(root):  # of several processes one draws
            with file_lock(place.with_name(f".{place.name}.lock")):
                write_glyphs(place)
        write_glyphs(place)
        return replace(super().open(root, source, target, request), resize=RESIZE, crop=CROP, flip=FLIP)


glyphs = GlyphsData("Glyphs", DOMAINS, "<domain>/images/<class>/*.png", CLASSES, split=LabelSplit.parse(SPLIT, CLASSES))
