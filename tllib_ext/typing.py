"""Type aliases and protocols that several packages share. Imports nothing but the standard library at run time."""

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Protocol, Sequence, Tuple, TypedDict, Union

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

__all__ = ["PathLike", "JSONValue", "Record", "ParameterGroup", "PlayerGroups", "ImageList"]

#: a file or folder name
PathLike = Union[str, "os.PathLike[str]"]

#: what a JSON file can hold
JSONValue = Union[None, bool, int, float, str, Sequence["JSONValue"], Dict[str, "JSONValue"]]

#: an object of a JSON file or a checkpoint after parsing: the reader checks the values it uses
Record = Dict[str, Any]


class ParameterGroup(TypedDict, total=False):
    """Parameters that are optimised together; ``lr_mult`` scales the run's learning rate (1 if absent)."""

    params: "Iterable[Tensor]"
    lr_mult: float
    weight_decay: float
    momentum: float


#: what a method's ``players()`` returns: the parameter groups of each player
PlayerGroups = Dict[str, List[ParameterGroup]]


class ImageList(Protocol):
    """A data set by tllib's convention, which torchvision's ``ImageFolder`` follows too."""

    @property
    def samples(self) -> "Sequence[Tuple[str, int]]":
        """Path and label of every image."""

    @property
    def classes(self) -> Sequence[str]:
        """Name of every label."""

    @property
    def loader(self) -> "Callable[[str], Image]":
        """Reads one image."""
