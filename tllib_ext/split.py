r"""Which classes are shared and which are private. This file alone defines label indices.

Source labels are ``0..K-1`` (shared classes first, then source-private ones), every target-private class is the one
label ``K``. No other file does arithmetic with ``K``.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple

from tllib_ext.errors import UserError, closest

__all__ = ["LabelSplit", "PRESETS", "SCENARIOS"]


@dataclass(frozen=True)
class LabelSplit:
    r"""The label sets :math:`C`, :math:`\bar C_s` and :math:`\bar C_t` by class name.

    Args:
        shared (tuple[str]): :math:`C`, classes of both domains
        source_private (tuple[str]): :math:`\bar C_s`, classes of the source only
        target_private (tuple[str]): :math:`\bar C_t`, classes of the target only: "unknown"

    Examples::

        >>> split = LabelSplit.parse("2/1/1", ["ant", "bee", "cat", "dog"])
        >>> split.num_source, split.unknown, split.scenario
        (3, 3, 'universal')
        >>> split.source_index("cat"), split.source_index("dog"), split.target_index("dog")
        (2, None, 3)
    """

    shared: Tuple[str, ...]
    source_private: Tuple[str, ...] = ()
    target_private: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("shared", "source_private", "target_private"):
            object.__setattr__(self, field, tuple(map(str, getattr(self, field))))
        names = self.shared + self.source_private + self.target_private
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise UserError(f"a class is in two parts of the split: {', '.join(twice)}")
        if {"", "unknown"} & set(self.source_classes):
            raise UserError("a source class has no name or is called 'unknown', the name of every other class: rename it")
        if self.num_source < 2:
            raise UserError(f"a classifier needs at least 2 source classes, the split has {self.num_source}")

    @property
    def num_source(self) -> int:
        """K, the width of the classifier."""
        return len(self.source_classes)

    @property
    def unknown(self) -> int:
        """The label of every target-private class."""
        return self.num_source

    @property
    def source_classes(self) -> Tuple[str, ...]:
        """Names of the labels ``0..K-1``."""
        return self.shared + self.source_private

    @property
    def label_names(self) -> Tuple[str, ...]:
        """Names of the labels ``0..K``, which are the source classes and ``"unknown"``."""
        return self.source_classes + ("unknown",)

    @property
    def shared_labels(self) -> range:
        """Labels of the shared classes."""
        return range(len(self.shared))

    @property
    def scenario(self) -> str:
        """``closed``, ``partial``, ``open`` or ``universal``."""
        return (("closed", "open"), ("partial", "universal"))[bool(self.source_private)][bool(self.target_private)]

    def source_index(self, name: str) -> Optional[int]:
        """The label of class ``name`` in the source, None if the source does not have it."""
        return self.source_classes.index(name) if name in self.source_classes else None

    def target_index(self, name: str) -> Optional[int]:
        """The label of class ``name`` in the target, None if the target does not have it."""
        return self.unknown if name in self.target_private else self.shared.index(name) if name in self.shared else None

    def table(self) -> str:
        """The mapping as text, one line per part, for the head of a log."""
        parts = (("shared", self.shared), ("source private", self.source_private), ("unknown", self.target_private))
        lines = [f"{self.scenario} label sets {self}"]
        lines += [f"  {title:<15}{len(names):>3}  {', '.join(names) or '-'}" for title, names in parts]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{len(self.shared)}/{len(self.source_private)}/{len(self.target_private)}"

    def to_dict(self) -> Dict[str, Sequence[str]]:
        """Plain lists, for JSON; ``LabelSplit(**d)`` reads them back."""
        return {field: list(getattr(self, field)) for field in ("shared", "source_private", "target_private")}

    @classmethod
    def parse(cls, text: str, classes: Sequence[str]) -> "LabelSplit":
        """A preset's name, or ``a/b/c`` over ``classes`` in their order: a shared, b source-private, c target-private.

        ``PRESET:a/b/c`` takes the classes in the preset's order, e.g. ``Office31:10/21/0`` shares its ten and gives the
        source all the others. ``PRESET:SCENARIO`` is one of :data:`SCENARIOS`, e.g. ``Office31:open``; the data set's name
        can be left out where its classes are the data's.
        """
        if text in PRESETS:
            return PRESETS[text]
        name, _, counts = text.rpartition(":")
        found = _scenario(name, counts, classes)
        if found is not None:
            return found
        if name in PRESETS:
            classes = PRESETS[name].source_classes + PRESETS[name].target_private
        try:
            a, b, c = (int(part) for part in (counts if name in PRESETS else text).split("/"))
            if min(a, b, c) < 0:
                raise ValueError
        except ValueError:
            form = "a/b/c (shared/source private/target private, e.g. 10/10/11)"
            presets = [*PRESETS, *(f"{name}:{scenario}" for name in SCENARIOS for scenario in SCENARIOS[name])]
            raise UserError(f"split {text!r} is neither {form} nor a preset; {closest(text, presets)}") from None
        if a + b + c > len(classes):
            raise UserError(f"split {text} has {a + b + c} classes, the data has {len(classes)}")
        return cls(tuple(classes[:a]), tuple(classes[a : a + b]), tuple(classes[a + b : a + b + c]))


def _scenario(name: str, scenario: str, classes: Sequence[str]) -> Optional[LabelSplit]:
    """The label sets of a scenario; None if the text is no scenario of the data set, or of any with these classes."""
    for data, counts in SCENARIOS.items():
        preset = PRESETS.get(data)
        names = sorted(classes, key=_order) if preset is None else preset.source_classes + preset.target_private
        sizes = [int(part) for part in counts[scenario].split("/")] if scenario in counts else []
        if sizes and (data == name or (not name and set(names) == set(classes) and len(names) == _NUMBER[data])):
            if len(names) != _NUMBER[data]:
                raise UserError(f"split {data}:{scenario} is of {_NUMBER[data]} classes, the data has {len(names)}")
            a, b, c = sizes
            return LabelSplit(tuple(names[:a]), tuple(names[a : a + b]), tuple(names[len(names) - c :]))
    return None


def _order(name: str) -> str:
    """The benchmarks' alphabetical order, in which case, hyphens and underscores do not count."""
    return "".join(filter(str.isalnum, name.lower()))


def _preset(shared: str, source_private: str, target_private: str) -> LabelSplit:
    return LabelSplit(tuple(shared.split()), tuple(source_private.split()), tuple(target_private.split()))


#: The benchmarks' splits by the names of classes, whose order is part of the benchmark (pair noise flips k to k+1).
#:
#: :meta hide-value:
PRESETS: Dict[str, LabelSplit] = {
    # Shared = the ten classes of Office-Caltech, the rest alphabetical.
    "Office31": _preset(
        "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector",
        "bike_helmet bookcase bottle desk_chair desk_lamp desktop_computer file_cabinet letter_tray mobile_phone paper_notebook",
        "pen phone printer punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can",
    ),
    # Alphabetical, which is not the order of tllib's OfficeHome.CLASSES.
    "OfficeHome": _preset(
        "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles",
        "Chair Clipboards Computer Couch Curtains",
        "Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle"
        " Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil"
        " Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker"
        " Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam",
    ),
    "VisDA2017": _preset("aeroplane bicycle bus car horse knife", "motorcycle person plant", "skateboard train truck"),
}

#: Label sets by data set and scenario: shared/source private/target private over the classes in the preset's order, those of
#: DomainNet in alphabetical order. The target-private classes are the last ones. Office-Home has two open-set conventions:
#: 25/0/40 (GLC, LEAD) is ``open``, 15/0/50 (uniood, TLSA) is ``open_15``.
#:
#: :meta hide-value:
SCENARIOS: Dict[str, Dict[str, str]] = {
    "Office31": {"closed": "31/0/0", "partial": "10/21/0", "open": "10/0/11", "universal": "10/10/11"},
    "OfficeHome": {"closed": "65/0/0", "partial": "25/40/0", "open": "25/0/40", "open_15": "15/0/50", "universal": "10/5/50"},
    "VisDA2017": {"closed": "12/0/0", "partial": "6/6/0", "open": "6/0/6", "universal": "6/3/3"},
    "DomainNet": {"closed": "345/0/0", "partial": "150/195/0", "open": "150/0/195", "universal": "150/50/145"},
}
_NUMBER = {"Office31": 31, "OfficeHome": 65, "VisDA2017": 12, "DomainNet": 345}
