"""From ``DIR -d NAME -s SOURCE -t TARGET`` to two data sets and a label split."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tllib_ext.errors import UserError, closest
from tllib_ext.images import load_image
from tllib_ext.io import file_lock
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.vision.datasets.imagelist import FeatureList, ImageFolder, ImageList

__all__ = ["Data", "Known", "KNOWN", "DATA_NAMES", "find_domain", "open_data", "cache_dir"]


@dataclass(frozen=True)
class Known:
    """A data set in tllib's layout: ``root/image_list/<list>.txt``, labels in the order of ``classes``."""

    domains: Dict[str, str]  # tllib's letter -> domain's name
    lists: Dict[str, str]  # domain's name -> list file's stem
    classes: Tuple[str, ...]
    layout: str


def _known(name: str, domains: Dict[str, str], classes: Optional[str] = None, lists: Optional[Dict[str, str]] = None,
           layout: str = "") -> Known:  # fmt: skip
    preset = PRESETS[name]
    names = classes.split() if classes else sorted(preset.source_classes + preset.target_private)
    return Known(domains, lists or {d: d for d in domains.values()}, tuple(names), layout)


#: tllib's class order is the order of the labels in its list files.
#:
#: :meta hide-value:
KNOWN: Dict[str, Known] = {
    "Office31": _known(
        "Office31", {"A": "amazon", "D": "dslr", "W": "webcam"}, layout="amazon/images/<class>/*.jpg, dslr/…, webcam/…"
    ),
    "OfficeHome": _known(
        "OfficeHome",
        {"Ar": "Art", "Cl": "Clipart", "Pr": "Product", "Rw": "Real_World"},
        "Drill Exit_Sign Bottle Glasses Computer File_Cabinet Shelf Toys Sink Laptop Kettle Folder Keyboard Flipflops"
        " Pencil Bed Hammer ToothBrush Couch Bike Postit_Notes Mug Webcam Desk_Lamp Telephone Helmet Mouse Pen Monitor"
        " Mop Sneakers Notebook Backpack Alarm_Clock Push_Pin Paper_Clip Batteries Radio Fan Ruler Pan Screwdriver"
        " Trash_Can Printer Speaker Eraser Bucket Chair Calendar Calculator Flowers Lamp_Shade Spoon Candles"
        " Clipboards Scissors TV Curtains Fork Soda Table Knives Oven Refrigerator Marker",
        layout="Art/<class>/*.jpg, Clipart/…, Product/…, Real_World/…",
    ),
    "VisDA2017": _known(
        "VisDA2017",
        {"Synthetic": "Synthetic", "Real": "Real"},
        lists={"Synthetic": "train", "Real": "validation"},
        layout="train/<class>/*.png, validation/…",
    ),
}

DATA_NAMES = ("auto", *KNOWN, "Glyphs", "folder", "features", *(f"tllib:{name}" for name in KNOWN))


@dataclass
class Data:
    """Two domains and how to look at them."""

    name: str
    source_name: str
    target_name: str
    source: Any
    target: Any
    split: LabelSplit
    resize: int = 256
    crop: int = 224
    flip: bool = True

    @property
    def is_features(self) -> bool:
        """Whether the inputs are frozen features instead of images."""
        return getattr(self.source, "features", None) is not None


def cache_dir() -> Path:
    """Where generated data and frozen features are kept: ``$TLLIB_EXT_CACHE`` or ``~/.cache/tllib_ext``."""
    return Path(os.environ.get("TLLIB_EXT_CACHE") or Path.home() / ".cache" / "tllib_ext")


def find_domain(text: str, domains: Sequence[str], letters: Optional[Dict[str, str]] = None) -> str:
    """A domain by its name, tllib's letter or any unambiguous beginning, in any case.

    Examples::

        >>> [find_domain(text, ["amazon", "dslr"], {"A": "amazon"}) for text in ("A", "AMA", "dslr")]
        ['amazon', 'amazon', 'dslr']
    """
    wanted = text.lower()
    exact = [d for d in domains if d.lower() == wanted]
    by_letter = [name for letter, name in (letters or {}).items() if letter.lower() == wanted]
    starting = [d for d in domains if d.lower().startswith(wanted)]
    for found in ([d for d in domains if d == text], exact, by_letter, starting):
        if len(found) == 1:
            return found[0]
    if wanted and len(starting) > 1:
        raise UserError(f"domain {text!r} is ambiguous: {', '.join(sorted(starting))}")
    raise UserError(f"unknown domain {text!r}: {closest(text, domains)}")


def open_data(
    root: Optional[str],
    name: str = "auto",
    source: Optional[str] = None,
    target: Optional[str] = None,
    split: Optional[str] = None,
    download: bool = False,
    allow_outside: bool = False,
) -> Data:
    """Find the data, its two domains and the label split.

    Args:
        root (str, optional): data folder; None is the embedded data set
        name (str): one of :data:`DATA_NAMES`; ``auto`` recognises the layout
        source (str), target (str): domains, see :func:`find_domain`
        split (str, optional): preset or ``a/b/c``; default: the benchmark's, or what the class folders say
        download (bool): let tllib fetch the data (only ``tllib:…``)
        allow_outside (bool): let a list file name images outside of ``root``
    """
    if name not in DATA_NAMES:
        raise UserError(f"unknown dataset {name!r}: {closest(name, DATA_NAMES)}")
    if root is None and name in ("auto", "Glyphs"):
        name, root = "Glyphs", str(cache_dir() / "glyphs")
    if root is None:
        raise UserError(f"-d {name} needs the data's folder: python examples/noisy_unida.py DIR -d {name} -s … -t …")
    if name == "auto" and os.path.isdir(root):
        name = _recognise(root)
    if name == "Glyphs":
        from tllib_ext.vision.datasets import glyphs

        if not (Path(root) / glyphs.MARKER).exists():  # drawn once, however many processes ask for it
            with file_lock(Path(root).with_name(f".{Path(root).name}.lock")):
                glyphs.write_glyphs(Path(root))
        glyphs.write_glyphs(Path(root))
        known = Known(glyphs.DOMAINS, {d: d for d in glyphs.DOMAINS.values()}, tuple(glyphs.CLASSES), "")
        data = _listed(root, name, known, source or "P", target or "S", allow_outside)
        data.resize, data.crop, data.flip = glyphs.RESIZE, glyphs.CROP, glyphs.FLIP
        data.split = LabelSplit.parse(split or glyphs.SPLIT, glyphs.CLASSES)
        return data
    if not os.path.isdir(root) and not (download and name.startswith("tllib:")):
        raise UserError(_missing_folder(root, name))
    if source is None or target is None:
        raise UserError(f"-s and -t are needed: which domain is the source, which the target? {_domains_of(root, name)}")
    if name.startswith("tllib:"):
        data = _from_tllib(root, name, source, target, download)
    elif name in KNOWN:
        data = _listed(root, name, KNOWN[name], source, target, allow_outside)
    elif name == "folder":
        data = _folders(root, source, target)
    else:
        data = _features(root, source, target)
    if split is not None:
        data.split = LabelSplit.parse(split, _all_classes(data))
    return data


def _missing_folder(root: str, name: str) -> str:
    if name in KNOWN:
        known = KNOWN[name]
        lists = ", ".join(f"{stem}.txt" for stem in known.lists.values())
        return f"no data folder {root}: expected {root}/image_list/{{{lists}}} and {known.layout}"
    return (
        f"no data folder {root}: expected tllib's layout ({root}/image_list/<domain>.txt), "
        f"{root}/<domain>/<class>/<image>, or {root}/<domain>.npz; without DIR the embedded data is used"
    )


def _recognise(root: str) -> str:
    for name, known in KNOWN.items():
        if all(os.path.exists(os.path.join(root, "image_list", f"{stem}.txt")) for stem in known.lists.values()):
            return name
    if os.path.exists(os.path.join(root, "glyphs.json")):
        return "Glyphs"
    return "features" if _stems(root) else "folder"


def _stems(root: str) -> List[str]:
    return sorted(entry.name[:-4] for entry in os.scandir(root) if entry.name.endswith(".npz"))


def _subfolders(root: str) -> List[str]:
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))


def _domains_of(root: str, name: str) -> str:
    if name.removeprefix("tllib:") in KNOWN:
        names: Sequence[str] = list(KNOWN[name.removeprefix("tllib:")].domains.values())
    else:
        names = _stems(root) if name == "features" else _subfolders(root)
    return f"domains here: {', '.join(names) or 'none'}"


def _pair(source: str, target: str, domains: Sequence[str], letters: Optional[Dict[str, str]] = None) -> Tuple[str, str]:
    first, second = find_domain(source, domains, letters), find_domain(target, domains, letters)
    if first == second:
        raise UserError(f"source and target are the same domain, {first!r}: choose two of {', '.join(domains)}")
    return first, second


def _listed(root: str, name: str, known: Known, source: str, target: str, allow_outside: bool) -> Data:
    first, second = _pair(source, target, list(known.lists), known.domains)
    lists = [
        ImageList(root, known.classes, os.path.join(root, "image_list", f"{known.lists[d]}.txt"), allow_outside=allow_outside)
        for d in (first, second)
    ]
    return Data(name, first, second, *lists, split=PRESETS.get(name) or LabelSplit(known.classes))


def _from_tllib(root: str, name: str, source: str, target: str, download: bool) -> Data:
    from tllib_ext import compat

    plain = name.removeprefix("tllib:")
    builder = getattr(compat.tllib("vision.datasets"), plain)
    known = KNOWN[plain]
    first, second = _pair(source, target, list(known.lists), known.domains)
    letter = {domain: letter for letter, domain in known.domains.items()}
    absent = [name for name, *_ in builder.download_list if not os.path.exists(os.path.join(root, name))]
    if absent and not download:
        raise UserError(f"{root} has no {', '.join(absent)}: expected {known.layout} and image_list/; or add --download")
    # tllib 0.4 fails with download=False (it calls a function of two arguments with one); with True it fetches only what
    # is absent, which is nothing here unless the user allowed it.
    sets = [builder(root=root, task=letter[d], download=True) for d in (first, second)]
    for dataset in sets:
        dataset.loader = load_image  # one way to read an image, whoever listed it
    return Data(name, first, second, *sets, split=PRESETS[plain])


def _folders(root: str, source: str, target: str) -> Data:
    domains = _subfolders(root)
    if len(domains) < 2:
        raise UserError(f"{root} holds {len(domains)} folder(s): expected one per domain, {root}/<domain>/<class>/<image>")
    first, second = _pair(source, target, domains)
    sets = [ImageFolder(os.path.join(root, d)) for d in (first, second)]
    if not sets[0].labelled:
        raise UserError(f"the source {first} has no class folders: expected {root}/{first}/<class>/<image>")
    return Data("folder", first, second, *sets, split=_split_by_classes(sets[0], sets[1]))


def _features(root: str, source: str, target: str) -> Data:
    domains = _stems(root)
    if not domains:
        raise UserError(f"no .npz in {root}: expected {root}/<domain>.npz with features, labels, classes[, paths]")
    first, second = _pair(source, target, domains)
    sets = [FeatureList(os.path.join(root, f"{d}.npz")) for d in (first, second)]
    widths = [dataset.features.shape[1] for dataset in sets]
    if widths[0] != widths[1]:
        raise UserError(f"features of {first} are {widths[0]} wide, those of {second} {widths[1]}: expected one backbone")
    return Data("features", first, second, *sets, split=_split_by_classes(sets[0], sets[1]))


def _present(dataset: Any) -> List[str]:
    return [dataset.classes[k] for k in sorted({label for _, label in dataset.samples if label is not None})]


def _split_by_classes(source: Any, target: Any) -> LabelSplit:
    """A benchmark's classes get the benchmark's split; else shared is what both domains have."""
    here, there = _present(source), _present(target)
    for preset in PRESETS.values():
        if set(preset.source_classes + preset.target_private) == set(here) | set(there):
            return preset
    if not there:  # an unlabelled target: which classes are shared is what the user wants to know
        return LabelSplit(tuple(here))
    shared = [name for name in here if name in set(there)]
    if not shared:
        raise UserError(f"source and target share no class name: {', '.join(here[:5])} … and {', '.join(there[:5])} …")
    return LabelSplit(shared, [n for n in here if n not in shared], [n for n in there if n not in shared])


def _all_classes(data: Data) -> List[str]:
    names = list(data.source.classes)
    return names + [name for name in data.target.classes if name not in set(names)]
