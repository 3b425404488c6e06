"""The words of a grid's flags: lists of tasks, noises, methods and seeds."""

import os
import re
from itertools import product
from typing import List, Sequence, TypeVar

from tllib_ext.errors import UserError, closest
from tllib_ext.experiments.domains import Domains, Task
from tllib_ext.experiments.grid import Noise
from tllib_ext.experiments.paper import paper_tables
from tllib_ext.methods import METHODS, TLLIB_METHODS
from tllib_ext.vision.datasets import NOISES

__all__ = ["parse_tasks", "parse_noises", "parse_methods", "parse_seeds"]

T = TypeVar("T")

#: the order of rows in a table: the paper's, its method last before tllib's.
ROWS = ("source_only", "coteaching", "jocor", "dann", "tcl", "etn", "sta", "uan", "dance", "dance_sel", "ovanet", "divergence")


def parse_tasks(text: str, domains: Domains) -> List[Task]:
    """``all`` or a list of ``A2D``, ``amazon2dslr``, ``amazon:dslr``.

    Examples::

        >>> office = Domains("features", ("amazon", "dslr", "webcam"), {})
        >>> [task.label for task in parse_tasks("A2D,webcam:amazon", office)]
        ['A2D', 'W2A']
        >>> len(parse_tasks("all", office))
        6
    """
    if text == "all":
        every = [domains.task(a, b) for a, b in product(domains.names, repeat=2) if a != b]
        order = paper_tables()["tasks"].get(domains.benchmark or "", [])
        if order:
            every = sorted((t for t in every if t.label in order), key=lambda t: order.index(t.label))
        return every
    return _once([_task(word, domains) for word in _words(text, "--tasks", "A2D,W2A or all")])


def _task(word: str, domains: Domains) -> Task:
    cuts = [i for i, char in enumerate(word) if char == ":"] or [i for i, char in enumerate(word) if char == "2"]
    found = []
    for cut in cuts:  # a domain's own name may hold a 2
        try:
            found.append((domains.find(word[:cut]), domains.find(word[cut + 1 :])))
        except UserError as error:
            reason = str(error)
    if len(found) == 1:
        return domains.task(*found[0])
    if len(found) > 1:
        raise UserError(f"task {word!r} can be read in {len(found)} ways: write SOURCE:TARGET")
    detail = reason if len(cuts) == 1 else f"domains here: {', '.join(domains.names)}"
    raise UserError(f"unknown task {word!r}: expected SOURCE2TARGET or SOURCE:TARGET; {detail}")


def parse_noises(text: str, rate: float = 0.2) -> List[Noise]:
    """A list of ``pair:0.2``, the paper's ``P20``, ``none``, or a matrix file; without a rate ``--rate`` counts.

    Examples::

        >>> [noise.label for noise in parse_noises("pair:0.2,S45,none")]
        ['pair 0.2', 'symmetric 0.45', 'clean']
    """
    return _once([_noise(word, rate) for word in _words(text, "--noise", "pair:0.2,symmetric:0.45")])


def _noise(word: str, rate: float) -> Noise:
    if re.fullmatch(r"[PpSs]\d{1,2}", word):
        return Noise("pair" if word[0] in "Pp" else "symmetric", int(word[1:]) / 100)
    kind, found, number = word.partition(":")
    if kind in ("none", "clean"):
        return Noise("none", 0.0)
    if kind.endswith((".npy", ".csv")):
        if not os.path.isfile(kind):
            raise UserError(f"--noise {kind}: no such file")
        kind = os.path.realpath(kind)
    elif kind not in NOISES:
        raise UserError(f"unknown noise {word!r}: expected KIND:RATE such as pair:0.2, or a matrix file; {closest(kind, NOISES)}")
    try:
        value = float(number) if found else rate
        if not 0 <= value < 1:
            raise ValueError
    except ValueError:
        raise UserError(f"--noise {word!r}: the rate is a number in [0, 1), e.g. {kind}:0.2") from None
    return Noise(kind, value)


def parse_methods(text: str) -> List[str]:
    """Names; ``all`` is every method of the package, ``tllib`` every built-in of tllib, ``paper`` the paper's eight.

    Examples::

        >>> parse_methods("dance,divergence"), parse_methods("paper")[0], "tllib:mcd" in parse_methods("tllib")
        (['dance', 'divergence'], 'source_only', True)
    """
    native = [name for name in ROWS if name in METHODS] + [name for name in METHODS if name not in ROWS]
    groups = {"all": native, "tllib": [f"tllib:{name}" for name in TLLIB_METHODS], "paper": list(paper_tables()["methods"])}
    names: List[str] = []
    for word in _words(text, "--methods", "dance,divergence or all"):
        if word not in groups and word not in METHODS and word.removeprefix("tllib:") not in TLLIB_METHODS:
            raise UserError(f"unknown method {word!r}: {closest(word, [*groups, *METHODS, *groups['tllib']])}")
        names += groups.get(word, [word])
    return _once(names)


def parse_seeds(text: str) -> List[int]:
    """``0-2,5`` is 0, 1, 2, 5.

    Examples::

        >>> parse_seeds("0-2,5")
        [0, 1, 2, 5]
    """
    seeds: List[int] = []
    for word in _words(text, "--seeds", "0-2"):
        if not re.fullmatch(r"\d{1,9}(-\d{1,9})?", word):
            raise UserError(f"--seeds {word!r}: expected whole numbers such as 0-2 or 0,1,5")
        first, _, last = word.partition("-")
        if int(last or first) < int(first) or int(last or first) - int(first) > 999:
            raise UserError(f"--seeds {word!r}: expected at most 1000 seeds from a smaller to a larger number")
        seeds += range(int(first), int(last or first) + 1)
    return _once(seeds)


def _words(text: str, flag: str, example: str) -> List[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"{flag} is empty: expected {example}")
    return words


def _once(items: Sequence[T]) -> List[T]:
    return list(dict.fromkeys(items))
