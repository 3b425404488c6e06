"""Office-31, Office-Home and VisDA-2017 in tllib's layout, read by our own reader or by tllib's classes."""

import os
from typing import Dict, Optional, Sequence

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.vision.datasets.builder import Data, DataRequest, DatasetBuilder
from tllib_ext.vision.datasets.downloads import ARCHIVES, lacking_data
from tllib_ext.vision.datasets.imagelist import ImageList
from tllib_ext.vision.fetch import Needed

__all__ = ["Benchmark", "TllibBenchmark", "BENCHMARKS", "office31", "office_home", "visda2017", "from_tllib"]


class Benchmark(DatasetBuilder):
    """A data set in tllib's layout: list files ``root/image_list/<stem>.txt`` with labels in the order of ``classes``.

    Args:
        name (str): of the data set, and of its split in :data:`~tllib_ext.split.PRESETS` if there is no ``split``
        letters (dict): tllib's letter -> domain
        layout (str): where the images are, for messages
        classes (sequence of str, optional): tllib's class order; default: alphabetical
        lists (dict, optional): domain -> stem of its list file; default: the same
    """

    def __init__(
        self, name: str, letters: Dict[str, str], layout: str, classes: Optional[Sequence[str]] = None,
        lists: Optional[Dict[str, str]] = None, split: Optional[LabelSplit] = None,
    ):  # fmt: skip
        self.name, self.letters, self.split = name, letters, split or PRESETS[name]
        self.lists = lists or {domain: domain for domain in letters.values()}
        self.layout = f"image_list/{{{', '.join(f'{stem}.txt' for stem in self.lists.values())}}} and {layout}"
        self.classes = tuple(classes or sorted(self.split.source_classes + self.split.target_private))

    def recognises(self, root: str) -> bool:
        return all(os.path.exists(os.path.join(root, "image_list", f"{stem}.txt")) for stem in self.lists.values())

    def domains(self, root: str) -> Sequence[str]:
        return list(self.lists)

    def lacking(self, root: Optional[str]) -> Optional[Needed]:
        return lacking_data(self.name, root) if root is not None and self.name in ARCHIVES else None

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        files = (os.path.join(root, "image_list", f"{self.lists[domain]}.txt") for domain in (source, target))
        first, second = (ImageList(root, self.classes, file, allow_outside=request.allow_outside) for file in files)
        return Data(request.name, source, target, first, second, split=self.split)


class TllibBenchmark(Benchmark):
    """The same data through tllib's own class."""

    def __init__(self, benchmark: Benchmark):
        vars(self).update(vars(benchmark))

    def lacking(self, root: Optional[str]) -> Optional[Needed]:
        compat.tllib("vision.datasets")  # without tllib there is nothing to fetch for
        return super().lacking(root)

    def open(self, root: str, source: str, target: str, request: DataRequest) -> Data:
        builder = getattr(compat.tllib("vision.datasets"), self.name)
        absent = [name for name, *_ in builder.download_list if not os.path.exists(os.path.join(root, name))]
        if absent:
            raise UserError(f"{root} has no {', '.join(absent)}: expected {self.layout}; an empty folder is filled")
        letter = {domain: letter for letter, domain in self.letters.items()}
        # With download=False tllib 0.4 calls a function of two arguments with one; with True it fetches what is absent: nothing.
        first, second = (builder(root=root, task=letter[domain], download=True) for domain in (source, target))
        first.loader = second.loader = load_image  # the one reader of image files
        return Data(request.name, source, target, first, second, split=self.split)


office31 = Benchmark("Office31", {"A": "amazon", "D": "dslr", "W": "webcam"}, "amazon/images/<class>/*.jpg, dslr/…, webcam/…")
office_home = Benchmark(
    "OfficeHome",
    {"Ar": "Art", "Cl": "Clipart", "Pr": "Product", "Rw": "Real_World"},
    "Art/<class>/*.jpg, Clipart/…, Product/…, Real_World/…",
    (
        "Drill Exit_Sign Bottle Glasses Computer File_Cabinet Shelf Toys Sink Laptop Kettle Folder Keyboard Flipflops Pencil Bed"
        " Hammer ToothBrush Couch Bike Postit_Notes Mug Webcam Desk_Lamp Telephone Helmet Mouse Pen Monitor Mop Sneakers Notebook"
        " Backpack Alarm_Clock Push_Pin Paper_Clip Batteries Radio Fan Ruler Pan Screwdriver Trash_Can Printer Speaker Eraser"
        " Bucket Chair Calendar Calculator Flowers Lamp_Shade Spoon Candles Clipboards Scissors TV Curtains Fork Soda Table"
        " Knives Oven Refrigerator Marker"
    ).split(),
)
visda2017 = Benchmark(
    "VisDA2017", {"Synthetic": "Synthetic", "Real": "Real"}, "train/<class>/*.png, validation/…",
    lists={"Synthetic": "train", "Real": "validation"},
)  # fmt: skip

#: by the name of their split.
#:
#: :meta hide-value:
BENCHMARKS: Dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (office31, office_home, visda2017)}


def from_tllib(name: str) -> TllibBenchmark:
    """The builder ``tllib:NAME``."""
    return TllibBenchmark(BENCHMARKS[name])
