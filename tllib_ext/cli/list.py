"""``tllib-ext list``: the methods, data sets, backbones and noises there are, each with a line of help."""

import argparse
from typing import Any, Dict, Optional, Sequence

from tllib_ext.errors import one_line
from tllib_ext.methods import METHODS
from tllib_ext.registry import Registry
from tllib_ext.vision.datasets import DATASETS, NOISES
from tllib_ext.vision.models import BACKBONES

__all__ = ["main"]

REGISTRIES: Dict[str, "Registry[Any]"] = dict(methods=METHODS, datasets=DATASETS, backbones=BACKBONES, noises=NOISES)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Print the names and their help; imports neither torch nor any of the listed builders."""
    parser = argparse.ArgumentParser(prog="tllib-ext list", description=__doc__.partition(": ")[2] if __doc__ else None)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(REGISTRIES)}; default: all")
    kinds = parser.parse_args(argv).kinds
    for kind in kinds:
        if kind not in REGISTRIES:
            parser.error(f"unknown kind {kind!r}: expected one of {', '.join(REGISTRIES)}")
    for kind in kinds or REGISTRIES:
        print(f"{kind}:")
        lines = REGISTRIES[kind].help()
        width = min(24, max(map(len, lines)))
        for name, text in lines.items():
            print(f"  {one_line(name):<{width}}  {one_line(text)}")
    return 0
