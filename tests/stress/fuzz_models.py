"""Models whose metadata were changed: for the fuzzing of ``load_run``."""

import copy
import json
import time
from pathlib import Path

from hypothesis import strategies as st

from tllib_ext.methods import METHODS
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.saved_run import load_run
from tllib_ext.vision.models.small_cnn import SmallCNN

__all__ = ["good_model", "hostile_models", "read_model"]

METHOD_NAMES = ("source_only", "divergence", "dance", "ovanet", "credo", "coteaching", "jocor", "dann", "tcl", "etn", "uan",
                "sta", "frozen:divergence")  # fmt: skip
#: seconds within which a model of this size is read or refused
LIMIT = 5.0
VALUES = [None, True, 0, -1, 1, 3, 10**4, 10**9, 10**30, 1e30, -1e-300, 0.5, float("nan"), float("inf"),
          "", "x", "1", "none", "\0",
          "../x", "\ud800", "a" * 10_000, [], {}, [1], [[]], {"a": {}}, [None], ["a", "a"], ["a"] * 10_000,
          [str(i) for i in range(10_000)], {"resize": 10**9, "crop": 1}, "dance", "os:system", "resnet18",
          "torchvision:x"]  # fmt: skip


def _metadata(method):
    """Valid metadata of ``method``, with ``frozen:method`` of one on a frozen backbone."""
    frozen, method = method.startswith("frozen:"), method.removeprefix("frozen:")
    cls = METHODS.get(method)
    image, split = (
        {"resize": 36, "crop": 32, "flip": True},
        {"shared": ["a", "b"], "source_private": ["c"], "target_private": ["d"]},
    )
    return {"format": 1, "method": method, "hparams": vars(cls.Hparams()), "split": split, "arch": "small_cnn",
            "freeze_backbone": frozen, "bottleneck_dim": 16, "bottleneck_norm": "batch", "image": image, "in_features": None,
            "data": "folder"}  # fmt: skip


def _file(metadata, tensors):
    from safetensors.torch import save

    return save(tensors, {"tllib_ext": json.dumps(metadata)})


def good_model(method="divergence"):
    """The bytes of a small valid model, its metadata and its tensors."""
    metadata, net = _metadata(method), SmallCNN()
    cls, tensors, backbone = METHODS.get(metadata["method"]), {}, net
    if metadata["freeze_backbone"]:
        tensors, backbone = {f"frozen.{name}": value for name, value in net.state_dict().items()}, FeatureBottleneck(128, 16)
    built = cls(backbone, LabelSplit(**metadata["split"]), cls.Hparams())
    tensors.update({f"method.{name}": value for name, value in built.state_dict().items()})
    return _file(metadata, tensors), metadata, tensors


def hostile_models(methods=METHOD_NAMES):
    """Valid models with one to three entries of their metadata deleted, replaced or added."""
    made = {method: good_model(method)[1:] for method in methods}
    paths = {method: [(a,) for a in m] + [(a, b) for a in m if isinstance(m[a], dict) for b in m[a]] + [("more",)]
             for method, (m, _) in made.items()}  # fmt: skip

    def apply(case):
        method, edits = case
        metadata = copy.deepcopy(made[method][0])
        for where, value, delete in edits:
            path, place = paths[method][where % len(paths[method])], metadata
            if len(path) == 2:
                place = metadata.get(path[0])
            if not isinstance(place, dict):
                continue
            if delete == 0:
                place.pop(path[-1], None)
            else:
                place[path[-1]] = copy.deepcopy(VALUES[value])
        return _file(metadata, made[method][1])

    edit = st.tuples(st.integers(0, 500), st.integers(0, len(VALUES) - 1), st.integers(0, 9))
    return st.tuples(st.sampled_from(methods), st.lists(edit, min_size=1, max_size=3)).map(apply)


def read_model(file: Path):
    """Load a model and label two images with it; more than :data:`LIMIT` seconds are an error."""
    import torch

    begin = time.monotonic()
    try:
        run = load_run(file.parent)
        assert 8 <= run.crop <= run.resize <= 4096, "what was read would need too much memory"
        run.predict_pixels(torch.zeros(2, run.resize, run.resize, 3, dtype=torch.uint8))
    finally:
        assert time.monotonic() - begin < LIMIT
