"""tllib, timm and torchvision: missing, half broken or of another build.

Only this file handles that. All others call :func:`torchvision`, :func:`timm` or :func:`tllib`, which return the module
or raise :class:`Missing` with the cause and the command that helps. ``python -m tllib_ext.compat`` prints the table.

tllib 0.4 was written for torch 1.7 and numpy 1.19 and needs a few names that later versions removed. They are added
where they are absent, no existing name is changed, and this is logged once.
"""

import importlib
import importlib.util
import logging
import pkgutil
import re
import sys
import textwrap
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, List, NoReturn, Optional, TypeVar

from tllib_ext.errors import UserError

__all__ = ["Missing", "PartStatus", "torchvision", "timm", "timm_or_stand_in", "tllib", "heif", "probe"]

log = logging.getLogger("tllib_ext.compat")

#: import name -> what to type, where it is not "pip install <import name>".
REMEDIES = {
    "tllib": "pip install git+https://github.com/thuml/Transfer-Learning-Library (or a checkout of it on PYTHONPATH)",
    "cv2": "pip install opencv-python",
    "sklearn": "pip install scikit-learn",
    "detectron2": "pip install git+https://github.com/facebookresearch/detectron2",
}

#: the backbones whose addresses tllib looks up in ``torchvision.models.resnet.model_urls``.
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d",
           "wide_resnet50_2", "wide_resnet101_2")  # fmt: skip

#: numpy's old names of Python's types; numpy 1.24 removed them, numpy 2 added two again with another meaning.
NUMPY_NAMES = {"bool": bool, "float": float, "int": int, "long": int, "str": str}

_declared: List[Any] = []  # operators are removed when their Library object is garbage-collected


class Missing(UserError):
    """A package or a part of it that cannot be used here: ``part`` is its import name, ``cause`` what its import raised.

    Examples::

        >>> error = Missing("timm", ModuleNotFoundError("No module named 'timm'", name="timm"))
        >>> str(error)
        "timm cannot be used: No module named 'timm'; type: pip install timm"
    """

    def __init__(self, part: str, cause: Exception):
        self.part, self.cause, self.remedy = part, cause, _remedy(part, cause)
        self.why = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        super().__init__(f"{part} cannot be used: {self.why}; type: {self.remedy}")


@dataclass(frozen=True)
class PartStatus:
    """Whether a package or a part of it can be used; if not, or not all of it, why and what to type."""

    name: str
    version: str
    usable: bool
    why: str = ""
    remedy: str = ""
    cause: Optional[Exception] = None


def torchvision() -> ModuleType:
    """torchvision, also when its compiled operators do not fit torch's build.

    A CPU build of torch cannot load the operators of a CUDA build of torchvision, and then the import fails, because
    torchvision refers to two of them (``nms``, ``qnms``). Declaring these two is enough: data sets, transforms and
    classification models are plain Python. Using an operator still fails, with torchvision's own message.
    """
    try:
        return _import("torchvision")
    except Missing as missing:
        if "operator torchvision::" not in missing.why:
            raise
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    log.info("torchvision's compiled operators do not fit torch %s: declared nms and qnms", torch.__version__)
    return _import("torchvision")


def timm() -> ModuleType:
    """timm, on top of :func:`torchvision`."""
    torchvision()
    return _import("timm")


def timm_or_stand_in() -> None:
    """Make ``import timm`` work for tllib's scripts, all of which import it; without timm its functions fail when used."""
    try:
        timm()
        return
    except Missing as missing:
        problem = missing

    def absent(*args: object, **kwargs: object) -> NoReturn:
        raise problem

    augment = ["auto_augment_transform", "rand_augment_transform"]
    for name, functions in {"timm": ["create_model"], "timm.data": [], "timm.data.auto_augment": augment}.items():
        module = ModuleType(name, "Stands in for timm, which is not installed.")
        for function in functions:
            setattr(module, function, absent)
        sys.modules[name] = module
    sys.modules["timm"].list_models = lambda *args, **kwargs: []  # type: ignore[attr-defined]
    sys.modules["timm"].data = sys.modules["timm.data"]  # type: ignore[attr-defined]
    sys.modules["timm.data"].auto_augment = sys.modules["timm.data.auto_augment"]  # type: ignore[attr-defined]


def tllib(submodule: str = "") -> ModuleType:
    """tllib, or one of its parts such as ``"vision.datasets"``; afterwards ``import tllib…`` works as well."""
    if "tllib" not in sys.modules:
        _import_tllib()
    return _import(f"tllib.{submodule}") if submodule else sys.modules["tllib"]


@lru_cache(maxsize=1)
def heif() -> bool:
    """Whether HEIC photographs can be read: pillow-heif is installed, and its reader is registered with Pillow."""
    try:
        _import("pillow_heif").register_heif_opener()
    except Missing:
        return False
    return True


def probe() -> List[PartStatus]:
    """Try to import every part: the status of each package, and of each module that fails."""
    import torch

    parts = [*_walk("torchvision", torchvision, deep=False), *_walk("timm", timm, deep=False), *_walk("tllib", tllib)]
    # roi_align is an operator that torchvision() does not declare
    if parts[0].usable and not hasattr(torch.ops.torchvision, "roi_align"):
        why = "its compiled operators do not fit torch: detection (nms, roi_align, …) fails, everything else works"
        build = str(torch.__version__).partition("+")[2]  # "cpu" of 2.13.0+cpu; PyPI's torch and torchvision have none
        index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
        parts[0] = replace(parts[0], why=why, remedy=f"pip install --force-reinstall --no-deps torchvision{index}")
    return parts


def _import(name: str) -> ModuleType:
    try:
        # torchvision reports its image extension by a warning, tllib's old docstrings have invalid escapes
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to load image Python extension")
            warnings.filterwarnings("ignore", category=SyntaxWarning)
            return importlib.import_module(name)
    except Exception as cause:  # a broken package raises anything, not only ImportError
        raise Missing(name, cause) from cause


def _import_tllib() -> None:
    """Import tllib, or only the package without its parts if they do not all import."""
    spec = importlib.util.find_spec("tllib")
    if spec is None or spec.origin is None:  # no origin: a folder called tllib
        cause = ModuleNotFoundError("No module named 'tllib'", name="tllib")
        raise Missing("tllib", cause) from cause
    torchvision()
    names = list(_supply_names())
    if names:
        log.warning("supplied for tllib names that PyTorch and numpy no longer have: %s", ", ".join(names))
    try:
        _import("tllib")
    except Missing as missing:
        # tllib/__init__.py imports every part: one missing package (numba, for tllib.ranking) makes the import fail.
        # A package whose __init__ has not run still finds its parts, and a part that fails raises when it is imported.
        log.warning("tllib is used part by part, it does not import as a whole: %s", missing.why)
        package: Any = importlib.util.module_from_spec(spec)
        version = re.search(r"__version__ = ['\"](.*?)['\"]", Path(spec.origin).read_text(encoding="utf-8"))
        package.__version__ = version.group(1) if version else ""
        sys.modules["tllib"] = package
        for name, module in list(sys.modules.items()):
            if re.fullmatch(r"tllib\.\w+", name):  # loaded before the failure: attach it as an import does
                setattr(package, name[len("tllib.") :], module)


def _supply_names() -> Iterator[str]:
    """Set the names that tllib 0.4 needs where they are absent; yield those."""
    import numpy
    import torch.hub
    import torch.utils.data.dataset
    import torchvision.models.resnet as resnet
    from torchvision.models import get_model_weights

    dataset: Any = torch.utils.data.dataset
    if not hasattr(dataset, "T_co"):
        dataset.T_co = TypeVar("T_co", covariant=True)
        yield "torch.utils.data.dataset.T_co"
    if not hasattr(resnet, "model_urls"):
        resnet.model_urls = {name: get_model_weights(name).IMAGENET1K_V1.url for name in RESNETS}
        yield "torchvision.models.resnet.model_urls"
    moved = "torchvision.models.utils"
    if moved not in sys.modules and importlib.util.find_spec(moved) is None:
        module: Any = ModuleType(moved)
        module.load_state_dict_from_url = torch.hub.load_state_dict_from_url
        sys.modules[moved] = module
        yield f"{moved}.load_state_dict_from_url"
    for name, python_type in NUMPY_NAMES.items():
        if name not in vars(numpy):
            setattr(numpy, name, python_type)
            yield f"numpy.{name}"


def _walk(name: str, provider: Callable[[], ModuleType], deep: bool = True) -> Iterator[PartStatus]:
    """A row for the package, one for each package in it, and one for each module in it that fails."""
    try:
        module = provider()
    except Missing as missing:
        yield PartStatus(name, "", False, missing.why, missing.remedy, missing.cause)
        return
    if hasattr(module, "__path__"):
        yield PartStatus(name, getattr(module, "__version__", ""), True)
        for child in pkgutil.iter_modules(module.__path__) if deep else ():
            path = f"{name}.{child.name}"
            yield from _walk(path, partial(_import, path))


def _remedy(part: str, cause: Exception) -> str:
    """What to type: install the package that was not found, or reinstall the part's own package."""
    lacking = getattr(cause, "name", None) if isinstance(cause, ModuleNotFoundError) else None
    if lacking and lacking.startswith("tllib."):
        return f"python -m tllib_ext.compat, which lists the usable parts; or {REMEDIES['tllib']}"
    package = (lacking or part).split(".")[0]
    return REMEDIES.get(package, f"pip install {package}" if lacking else f"pip install --force-reinstall {package}")


def main() -> None:
    """Print one line for each usable part, and below each other part why it fails and what to type."""
    wrap = textwrap.TextWrapper(98, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False)
    for part in probe():
        status = "not usable" if not part.usable else "with limits" if part.why else "usable"
        print(f"{f'{part.name} {part.version}'.strip():<50} {status}")
        for label, text in (("why:", part.why), ("type:", part.remedy)):
            if text:
                print(wrap.fill(f"    {label:<6}{text}"))


if __name__ == "__main__":
    main()
