"""Type aliases that several packages share."""

import os
from typing import Any, Dict, Union

__all__ = ["PathLike", "Record"]

#: a file or folder name
PathLike = Union[str, "os.PathLike[str]"]

#: an object of a JSON file or a checkpoint after parsing; its reader checks the values that it uses
Record = Dict[str, Any]
