"""Type aliases that several packages share."""

import os
from typing import TYPE_CHECKING, Any, Dict, Union

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

__all__ = ["PathLike", "Record", "Values"]

#: a file or folder name
PathLike = Union[str, "os.PathLike[str]"]

#: an object of a JSON file or a checkpoint after parsing; its reader checks the values that it uses
Record = Dict[str, Any]

#: a tensor, an array, or a sequence of numbers
Values = Union["Tensor", "ArrayLike"]
