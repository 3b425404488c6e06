"""Data sets by name, those of the caller's own code among them: a builder, a function, or a class of image lists."""

import inspect
import os
from typing import Any, Callable, List, Sequence, cast

from tllib_ext.errors import UserError, first_line
from tllib_ext.vision.datasets import DATASETS
from tllib_ext.vision.datasets.builder import Data, DataRequest, DatasetBuilder, split_by_classes
from tllib_ext.vision.datasets.types import ImageListLike

__all__ = ["ListClass", "dataset_builder"]


def dataset_builder(name: str) -> Callable[[DataRequest], Data]:
    """The builder of a data set; a class that ``package.module:Class`` names is called with domains as tllib's are."""
    found = DATASETS.get(name)
    if not isinstance(found, type):
        return found
    return found() if issubclass(found, DatasetBuilder) else ListClass(name, cast(Callable[..., ImageListLike], found))


class ListClass(DatasetBuilder):
    """A class of image lists: ``Class(root, task=domain)`` as tllib's, or ``Class(root/domain)``.

    Args:
        name (str): of the class, for messages
        make (type): makes a list with ``samples``, ``classes`` and ``loader``
    """

    def __init__(self, name: str, make: Callable[..., ImageListLike]):
        self.name, self.make = name, make
        self.takes_task = "task" in inspect.signature(make).parameters

    def domains(self, root: str) -> Sequence[str]:
        """What the class lists (``domains()``, or the keys of ``image_list``), else the folders in ``root``."""
        listed: Any = getattr(self.make, "domains", None)
        if callable(listed):
            return [str(domain) for domain in listed()]
        if isinstance(getattr(self.make, "image_list", None), dict):
            return [str(domain) for domain in getattr(self.make, "image_list")]  # noqa: B009
        names: List[str] = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
        return names

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        first, second = (self._list(root, domain) for domain in (source, target))
        return Data(request.name, source, target, first, second, split=split_by_classes(first, second))

    def _list(self, root: str, domain: str) -> ImageListLike:
        try:
            made = self.make(root, task=domain) if self.takes_task else self.make(os.path.join(root, domain))
        except UserError:
            raise
        except Exception as error:  # code of others
            raise UserError(f"{self.name} cannot open {domain!r}: {type(error).__name__}: {first_line(error)}") from error
        lacking = [member for member in ("samples", "classes", "loader") if not hasattr(made, member)]
        if lacking:
            raise UserError(f"{self.name} made a {type(made).__name__} without {', '.join(lacking)}: expected an image list")
        return made
