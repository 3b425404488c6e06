"""The domains that some data offers and the tasks between them, without reading an image."""

import os
from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional, Tuple

from tllib_ext.errors import UserError, closest
from tllib_ext.experiments.paper import benchmark_of
from tllib_ext.vision.datasets import catalog
from tllib_ext.vision.datasets.catalog import DATA_NAMES, KNOWN, find_domain

__all__ = ["Task", "Domains", "domains_in"]


class Task(NamedTuple):
    """One direction between two domains and its short name, ``A2D``."""

    source: str
    target: str
    label: str


@dataclass(frozen=True)
class Domains:
    """The domains of some data, with tllib's letters where it has them."""

    data: str
    names: Tuple[str, ...]
    letters: Dict[str, str]

    @property
    def benchmark(self) -> Optional[str]:
        """The paper's name of this data, None for any other."""
        return benchmark_of(self.names)

    def find(self, text: str) -> str:
        """A domain by name, letter or beginning."""
        return find_domain(text, self.names, self.letters)

    def task(self, source: str, target: str) -> Task:
        """The task between two domains; short letters where they tell all domains apart."""
        if source == target:
            raise UserError(f"task {source}2{target}: the same domain twice, choose two of {', '.join(self.names)}")
        initials = {name: name[:1].upper() for name in self.names}
        short = len(set(initials.values())) == len(self.names)
        return Task(source, target, "2".join(initials[name] if short else name for name in (source, target)))


def domains_in(root: Optional[str], data: str = "auto") -> Domains:
    """The domains that ``DIR -d NAME`` offers, without reading an image.

    Examples::

        >>> domains_in(None).names
        ('print', 'hand', 'scene')
    """
    if data not in DATA_NAMES:
        raise UserError(f"unknown dataset {data!r}: {closest(data, DATA_NAMES)}")
    if data == "Glyphs" or (root is None and data == "auto"):
        from tllib_ext.vision.datasets.glyphs import DOMAINS

        return Domains("Glyphs", tuple(DOMAINS.values()), dict(DOMAINS))
    if root is None:
        raise UserError(f"-d {data} needs the data's folder: DIR -d {data}")
    if not os.path.isdir(root):
        raise UserError(catalog._missing_folder(root, data))
    if data == "auto":
        data = catalog._recognise(root)
    if data.removeprefix("tllib:") in KNOWN:
        letters = KNOWN[data.removeprefix("tllib:")].domains
        return Domains(data, tuple(letters.values()), dict(letters))
    names = catalog._stems(root) if data == "features" else catalog._subfolders(root)
    if len(names) < 2:
        layout = "<domain>.npz" if data == "features" else "<domain>/<class>/<image>"
        raise UserError(f"{root} holds {len(names)} domain(s), a task needs two: expected {root}/{layout}")
    return Domains(data, tuple(names), {})
