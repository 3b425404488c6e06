"""``tllib-ext tllib SCRIPT …``: the same as ``python -m tllib_ext.tllib SCRIPT …``."""

from tllib_ext.tllib.__main__ import main

__all__ = ["main"]
