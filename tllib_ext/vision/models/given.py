"""A backbone that the caller built: tllib's, timm's or any module with ``out_features``."""

import copy
import hashlib
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError
from tllib_ext.typing import Record
from tllib_ext.vision.models.providers import Backbone
from tllib_ext.vision.transforms import MEAN, STD

__all__ = ["GivenBackbone", "OBJECT", "class_name"]

#: what the name of a backbone begins with, in the settings of a run, where the caller built it
OBJECT = "object:"


def class_name(value: object) -> str:
    """Module and name of an object's class, e.g. ``tllib.vision.models.resnet.ResNet``."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


class _Statistics(NamedTuple):
    mean: Tuple[float, ...]
    std: Tuple[float, ...]


class _Renormalise(nn.Module):
    """From ImageNet's mean and deviation of the channels, which runs give, to those that a network was trained with."""

    scale: Tensor
    shift: Tensor

    def __init__(self, wanted: _Statistics):
        super().__init__()
        mean, std, new_mean, new_std = (torch.tensor(value).view(1, 3, 1, 1) for value in (MEAN, STD, *wanted))
        self.register_buffer("scale", std / new_std, persistent=False)
        self.register_buffer("shift", (mean - new_mean) / new_std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class GivenBackbone(Backbone):
    r"""A copy of a module as a backbone of a run: maps are pooled, images are normalised as it expects.

    Its features are as many as its ``out_features``, else its ``num_features`` (timm). timm's
    ``pretrained_cfg`` tells mean, deviation and size of the images; any other module gets ImageNet's, 224
    pixels.

    Args:
        module (torch.nn.Module): images to features :math:`(N, D)` or maps :math:`(N, D, H, W)`; without a
            classifier

    Examples::

        >>> net = nn.Conv2d(3, 8, 3)
        >>> net.out_features = 8
        >>> GivenBackbone(net)(torch.zeros(2, 3, 9, 9)).shape
        torch.Size([2, 8])
    """

    def __init__(self, module: nn.Module):
        if not isinstance(module, nn.Module):
            raise UserError(f"backbone is {class_name(module)}: expected a torch module with out_features")
        width = getattr(module, "out_features", None) or getattr(module, "num_features", None)
        if type(width) is not int or width < 1:
            raise UserError(f"the backbone {class_name(module)} has no out_features: set it to the number of its features")
        super().__init__(copy.deepcopy(module), width)
        self.name = class_name(module)
        config: Record = getattr(module, "pretrained_cfg", None) or {}
        wanted = _Statistics(tuple(config.get("mean", MEAN)), tuple(config.get("std", STD)))
        same = wanted == _Statistics(tuple(MEAN), tuple(STD))
        self.renormalise = nn.Identity() if same else _Renormalise(wanted)
        #: side of the images that it was trained on, where it tells
        self.input_size: Optional[int] = config["input_size"][-1] if config.get("input_size") else None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.renormalise(x))

    def check(self, size: int) -> None:
        """Raise unless an image of this size gives as many features as it says."""
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        modes = {module: module.training for module in self.modules()}
        try:
            with torch.no_grad():
                shape = tuple(self.eval()(torch.zeros(1, 3, size, size, device=device)).shape)
        except (RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"the backbone {self.name} does not take images of {size} x {size} pixels: {reason}") from None
        finally:
            for module, mode in modes.items():
                module.training = mode
        if shape != (1, self.out_features):
            raise UserError(f"the backbone {self.name} gives an output of shape {shape} for one image: expected "
                            f"(1, {self.out_features}), or maps of as many channels")  # fmt: skip

    def record(self) -> Record:
        """What a run writes down of it: class, width, and a digest of the names and shapes of its state."""
        state = self.net.state_dict()
        text = "\n".join(f"{name} {tuple(value.shape)}" for name, value in state.items())
        return {"class": self.name, "out_features": self.out_features,
                "parameters": sum(p.numel() for p in self.net.parameters()),
                "structure": hashlib.sha256(text.encode()).hexdigest()[:16]}  # fmt: skip
