"""The domains that some data offers and the tasks between them, without reading an image."""

from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional, Tuple

from tllib_ext.errors import UserError
from tllib_ext.experiments.paper import benchmark_of
from tllib_ext.vision.datasets.builder import DatasetBuilder, find_domain
from tllib_ext.vision.datasets.catalog import recognise
from tllib_ext.vision.datasets.own import dataset_builder

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
    """The domains that ``DIR -d NAME`` offers, without reading an image and without a download.

    Examples::

        >>> domains_in(None).names
        ('print', 'hand', 'scene')
    """
    data = recognise(root) if data == "auto" else data
    builder = dataset_builder(data)
    if not isinstance(builder, DatasetBuilder):
        raise UserError(f"the data set {data} does not list its domains: name the tasks, e.g. source2target")
    folder = root if root is not None and builder.lacking(root) is not None else builder.folder(root, data)
    names = builder.domains(folder)
    return Domains(data, tuple(names), dict(builder.letters))
