"""tllib_ext: Noisy Universal Domain Adaptation as extensions of TLlib.

The package mirrors tllib's folders (``tllib.alignment.mcd`` <-> ``tllib_ext.alignment.divergence``). The names below are
imported when they are first used: ``import tllib_ext`` loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from tllib_ext.alignment.divergence import HeadMinimax, SmallLossSelection, TargetSeparation
    from tllib_ext.api import Run, train
    from tllib_ext.estimator import NoisyUniDA
    from tllib_ext.evaluation.openset import OpenSetEvaluator
    from tllib_ext.labels.issues import find_label_issues
    from tllib_ext.labels.transition import estimate_labels
    from tllib_ext.split import LabelSplit
    from tllib_ext.training.config import RunConfig
    from tllib_ext.training.features import extract_features
    from tllib_ext.training.saved_run import load_run
    from tllib_ext.vision.datasets.noisy import NoisyLabels
    from tllib_ext.vision.datasets.universal import UniversalView

__version__ = "0.2.0"

#: public name -> the module that defines it.
_MODULES = {
    "RunConfig": "training.config",
    "train": "api",
    "Run": "api",
    "load_run": "training.saved_run",
    "NoisyUniDA": "estimator",
    "extract_features": "training.features",
    "LabelSplit": "split",
    "NoisyLabels": "vision.datasets.noisy",
    "UniversalView": "vision.datasets.universal",
    "OpenSetEvaluator": "evaluation.openset",
    "estimate_labels": "labels.transition",
    "find_label_issues": "labels.issues",
    "SmallLossSelection": "alignment.divergence",
    "TargetSeparation": "alignment.divergence",
    "HeadMinimax": "alignment.divergence",
}

__all__ = [
    "__version__", "RunConfig", "train", "Run", "load_run", "NoisyUniDA", "extract_features", "LabelSplit", "NoisyLabels",
    "UniversalView", "OpenSetEvaluator", "estimate_labels", "find_label_issues", "SmallLossSelection", "TargetSeparation",
    "HeadMinimax",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
