"""tllib, timm and torchvision: missing, half broken or of another build.

The one file that knows it. Everything else asks :func:`torchvision`, :func:`timm` or :func:`tllib` for the module and
gets it, or a :class:`Missing` that says why not and what to type. ``python -m tllib_ext.compat`` prints the table of
all parts.

tllib 0.4 was written for torch 1.7 and numpy 1.19. It needs a few names that have gone since; they are supplied where
they are absent, nothing that exists is changed, and a log line says so once.
"""

import importlib
import importlib.util
import logging
import pkgutil
import re
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, List, Optional, TypeVar

from tllib_ext.errors import UserError

__all__ = ["Missing", "PartStatus", "torchvision", "timm", "tllib", "probe"]

log = logging.getLogger("tllib_ext.compat")

#: import name -> what to type, where "pip install <import name>" is not it.
REMEDIES = {
    "tllib": "pip install git+https://github.com/thuml/Transfer-Learning-Library (or a checkout of it on PYTHONPATH)",
    "cv2": "pip install opencv-python",
    "sklearn": "pip install scikit-learn",
    "detectron2": "pip install git+https://github.com/facebookresearch/detectron2",
}

#: The backbones whose addresses tllib looks up in ``torchvision.models.resnet.model_urls``.
RESNETS = (
    "resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d wide_resnet50_2 wide_resnet101_2"
).split()

#: numpy's old names of Python's types; numpy 1.24 dropped them, numpy 2 brought two back with another meaning.
NUMPY_NAMES = {"bool": bool, "float": float, "int": int, "long": int, "str": str}

_declared: List[Any] = []  # torch.library forgets the operators of a Library object that is garbage-collected


class Missing(UserError):
    r"""A part that cannot be used here.

    Args:
        part (str): what was asked for, e.g. ``"tllib.vision.datasets"``.
        cause (Exception): what its import raised.

    Examples::

        >>> error = Missing("timm", ModuleNotFoundError("No module named 'timm'", name="timm"))
        >>> str(error)
        "timm cannot be used: No module named 'timm'; type: pip install timm"
    """

    def __init__(self, part: str, cause: Exception):
        self.part, self.cause = part, cause
        self.why, self.remedy = _first_line(cause), _remedy(part, cause)
        super().__init__(f"{part} cannot be used: {self.why}; type: {self.remedy}")


@dataclass(frozen=True)
class PartStatus:
    """One row of the table: what it is, whether it can be used, and if not (or not all of it) why and what to type."""

    name: str
    version: str
    usable: bool
    why: str = ""
    remedy: str = ""
    cause: Optional[Exception] = None


def torchvision() -> ModuleType:
    """torchvision, also when its compiled operators do not fit torch's build.

    A CPU torch beside the usual (CUDA) torchvision cannot load them, and then torchvision does not import at all,
    because it describes two of them (``nms``, ``qnms``) to torch. Declaring these two is enough: data sets, transforms
    and classification models are plain Python. Using an operator still fails, with torchvision's own message.
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


def tllib(submodule: str = "") -> ModuleType:
    """tllib or one of its parts; afterwards ``import tllib…`` works as well.

    Args:
        submodule (str): e.g. ``"vision.datasets"`` or ``"alignment.mcd"``. Default: the package itself.
    """
    if "tllib" not in sys.modules:
        _import_tllib()
    return _import(f"tllib.{submodule}") if submodule else sys.modules["tllib"]


def probe() -> List[PartStatus]:
    """Try to import every part; the packages, and whatever fails, in the order of the table."""
    parts = []
    for name, provider in (("torchvision", torchvision), ("timm", timm)):
        parts += _walk(name, provider, deep=False)
    if parts[0].usable and not _has_compiled_operators():
        why = "its compiled operators do not fit torch: detection (nms, roi_align, …) fails, everything else works"
        parts[0] = replace(parts[0], why=why, remedy=_reinstall_torchvision())
    return [*parts, *_walk("tllib", tllib)]


def _import(name: str) -> ModuleType:
    try:
        # torchvision reports its image extension by a warning, tllib's old docstrings have invalid escapes
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to load image Python extension")
            warnings.filterwarnings("ignore", category=SyntaxWarning)
            return importlib.import_module(name)
    except Exception as cause:  # a half broken package raises anything, not only ImportError
        raise Missing(name, cause) from cause


def _import_tllib() -> None:
    """Put tllib into ``sys.modules``, part by part if it does not import as a whole."""
    spec = importlib.util.find_spec("tllib")
    if spec is None or spec.origin is None:  # no origin: some folder that happens to be called tllib
        cause = ModuleNotFoundError("No module named 'tllib'", name="tllib")
        raise Missing("tllib", cause) from cause
    torchvision()
    names = list(_supply_names())
    if names:
        log.warning("supplied for tllib what current PyTorch and numpy no longer have: %s", ", ".join(names))
    try:
        _import("tllib")
    except Missing as missing:
        # tllib/__init__.py imports every part, so that one missing package (numba, for tllib.ranking) takes all down.
        # A package whose __init__ has not run still finds its parts; what a part itself lacks, it says when asked for.
        log.warning("tllib is used part by part, it does not import as a whole: %s", missing.why)
        package = importlib.util.module_from_spec(spec)
        version = re.search(r"__version__ = ['\"](.*?)['\"]", Path(spec.origin).read_text(encoding="utf-8"))
        package.__version__ = version.group(1) if version else ""
        sys.modules["tllib"] = package
        for name, module in list(sys.modules.items()):
            if re.fullmatch(r"tllib\.\w+", name):  # loaded before the failure: attach as an import would have
                setattr(package, name[len("tllib.") :], module)


def _supply_names() -> Iterator[str]:
    """Set the names tllib 0.4 needs where they are absent; yields those that were."""
    import numpy
    import torch.hub
    import torch.utils.data.dataset as dataset
    import torchvision.models.resnet as resnet
    from torchvision.models import get_model_weights

    if not hasattr(dataset, "T_co"):
        dataset.T_co = TypeVar("T_co", covariant=True)
        yield "torch.utils.data.dataset.T_co"
    if not hasattr(resnet, "model_urls"):
        resnet.model_urls = {name: get_model_weights(name).IMAGENET1K_V1.url for name in RESNETS}
        yield "torchvision.models.resnet.model_urls"
    moved = "torchvision.models.utils"
    if moved not in sys.modules and importlib.util.find_spec(moved) is None:
        sys.modules[moved] = ModuleType(moved)
        sys.modules[moved].load_state_dict_from_url = torch.hub.load_state_dict_from_url
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
            yield from _walk(path, lambda path=path: _import(path))


def _has_compiled_operators() -> bool:
    import torch

    return hasattr(torch.ops.torchvision, "roi_align")  # one that torchvision() does not declare


def _reinstall_torchvision() -> str:
    import torch

    build = str(torch.__version__).partition("+")[2]  # "cpu" of 2.13.0+cpu; PyPI's torch and torchvision have none
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"pip install --force-reinstall --no-deps torchvision{index}"


def _first_line(cause: Exception) -> str:
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def _remedy(part: str, cause: Exception) -> str:
    """What to type: install the package that was not found, or the part's own package anew."""
    lacking = getattr(cause, "name", None) if isinstance(cause, ModuleNotFoundError) else None
    if lacking and lacking.startswith("tllib."):
        return f"python -m tllib_ext.compat, which lists the parts that are there; or {REMEDIES['tllib']}"
    package = (lacking or part).split(".")[0]
    return REMEDIES.get(package, f"pip install {package}" if lacking else f"pip install --force-reinstall {package}")


def main() -> None:
    """Print the table."""
    from prettytable import PrettyTable

    table = PrettyTable(["part", "version", "usable", "why not", "what to type"], align="l")
    for part in probe():
        table.add_row([part.name, part.version, "yes" if part.usable else "no", part.why, part.remedy])
    print(table)


if __name__ == "__main__":
    main()
