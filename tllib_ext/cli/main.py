"""The console script ``tllib-ext COMMAND``; a command's module is imported when it is used."""

import sys
from importlib import import_module
from typing import List, Optional, Sequence

from tllib_ext import __version__
from tllib_ext.cli.parser import run_main
from tllib_ext.errors import UserError, closest

__all__ = ["COMMANDS", "main"]

#: command -> what it does; the module of the same name has its ``main``.
COMMANDS = {
    "classify": "sort new photographs by labelled ones: two folders, nothing to set",
    "train": "train and evaluate one method",
    "compare": "a grid of methods, tasks, noises and seeds, and its tables",
    "reproduce": "an experiment of the paper beside the published numbers",
    "features": "write the features of a frozen backbone for -d features",
    "audit": "find wrong labels from frozen features, without training",
    "apply": "move images into the folders of their corrected labels",
    "ask": "choose the new images to ask a person about, and make a page for the answers",
    "answer": "correct the predictions of a finished run by a person's answers",
    "predict": "label new images with a finished run",
    "evaluate": "recompute every metric from a predictions file",
    "select": "rank finished runs without target labels",
    "report": "draw the plots and the page of a finished run again",
    "doctor": "run every method on the device at hand, compare with the CPU, say what to set",
    "compat": "which optional packages are usable here, and what to type if not",
    "tllib": "run one of tllib's example scripts on current PyTorch",
    "list": "all methods, data sets, backbones and noises",
}


def _help() -> str:
    lines = [f"    {name:<11}{text}" for name, text in COMMANDS.items()]
    own = ["own photographs (docs/own_data.md):", "    tllib-ext classify my_photos/labelled my_photos/new"]
    return "\n".join(
        ["usage: tllib-ext COMMAND [flags]", "", *lines, "", *own, "", "tllib-ext COMMAND --help explains its flags."]
    )


def dispatch(words: List[str]) -> int:
    """Run the command that the first word names."""
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name in ("-V", "--version"):
        print(f"tllib-ext {__version__}")
        return 0
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}: {closest(name, COMMANDS)}")
    return import_module(f"tllib_ext.cli.{name}").main(words[1:]) or 0


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the words as a command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_main(lambda: dispatch(words))
