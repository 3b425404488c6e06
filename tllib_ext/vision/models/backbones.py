"""Backbones by one name, from torchvision, tllib, timm or this package, with tllib's ``out_features``."""

import os
from pathlib import Path
from typing import Any, Dict, Optional, Union

import torch
from torch import Tensor, nn

from tllib_ext import compat
from tllib_ext.errors import UserError, closest

__all__ = ["BACKBONES", "Backbone", "build_backbone", "load_weights", "read_state"]

#: torchvision's networks that we strip of their classifier; ``tllib:…`` and ``timm:…`` give access to the rest.
TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "wide_resnet50_2",
               "mobilenet_v2")  # fmt: skip
BACKBONES = ("small_cnn", *TORCHVISION)

_CLASSIFIERS = ("fc", "classifier", "head")


class Backbone(nn.Module):
    """A network without its classifier: images to features.

    Args:
        net (torch.nn.Module): gives :math:`(N, D)`, or maps :math:`(N, D, H, W)` that are averaged
        out_features (int): D
    """

    def __init__(self, net: nn.Module, out_features: int):
        super().__init__()
        self.net, self.out_features = net, out_features

    def forward(self, x: Tensor) -> Tensor:
        f = self.net(x)
        return f.mean((2, 3)) if f.dim() == 4 else f  # tllib's backbones leave the pooling to its classifier


def build_backbone(name: str, weights: Union[str, None] = "default", download: bool = False) -> nn.Module:
    """A backbone by name.

    Args:
        name (str): ``resnet50`` … (torchvision), ``tllib:NAME``, ``timm:NAME`` or ``small_cnn``
        weights (str, optional): ``"default"`` (pretrained), ``None`` or ``"none"`` (random), or a state-dict file
            (``.pth`` read with ``weights_only``, or ``.safetensors``), with or without its classifier
        download (bool): fetch default weights that are not on this machine yet
    """
    weights = None if weights in (None, "none") else str(weights)
    family, _, plain = name.rpartition(":")
    if family not in ("", "tllib", "timm") or (not family and name not in BACKBONES):
        raise UserError(f"unknown backbone {name!r}: {closest(name, [*BACKBONES, 'tllib:NAME', 'timm:NAME'])}")
    if name == "small_cnn":
        from tllib_ext.vision.models.small_cnn import small_cnn

        net = small_cnn("default" if weights == "default" else None)
    elif family == "tllib":
        net = _from_tllib(plain, weights == "default" and _allowed(download, name))
    elif family == "timm":
        net = _from_timm(plain, weights == "default" and _allowed(download, name))
    else:
        net = _from_torchvision(name, weights, download)
    if weights not in (None, "default"):
        load_weights(net, weights)
    return net


def _from_torchvision(name: str, weights: Optional[str], download: bool) -> nn.Module:
    models = compat.torchvision().models
    net = models.get_model(name, weights=None)
    if weights == "default":
        # The first ImageNet weights, which the paper started from; newer recipes have other features.
        enum = models.get_model_weights(name).IMAGENET1K_V1
        net.load_state_dict(_hub_state(enum.url, name, download))
    attribute = next(a for a in _CLASSIFIERS if hasattr(net, a))
    classifier = getattr(net, attribute)
    linear = classifier[-1] if isinstance(classifier, nn.Sequential) else classifier
    setattr(net, attribute, nn.Identity())
    return Backbone(net, linear.in_features)


def _hub_state(url: str, name: str, download: bool) -> Dict[str, Tensor]:
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
    if not file.exists() and not download:
        raise UserError(
            f"the ImageNet weights of {name} are not on this machine ({file}): add --download to fetch them from {url}, "
            "or give --weights PATH, or train with --scratch"
        )
    return torch.hub.load_state_dict_from_url(url, progress=True, weights_only=True) if download else read_state(file)


def _allowed(download: bool, name: str) -> bool:
    if not download:
        raise UserError(f"default weights of {name} come from the network: add --download, or give --weights PATH or none")
    return True


def _from_tllib(plain: str, pretrained: bool) -> nn.Module:
    models = compat.tllib("vision.models")
    if not callable(getattr(models, plain, None)) or plain.startswith("_"):
        names = [n for n, v in vars(models).items() if n.islower() and callable(v)]
        raise UserError(f"unknown backbone 'tllib:{plain}': {closest(plain, names)}")
    net = getattr(models, plain)(pretrained=pretrained)
    return Backbone(net, net.out_features)


def _from_timm(plain: str, pretrained: bool) -> nn.Module:
    timm = compat.timm()
    if plain not in timm.list_models():
        raise UserError(f"unknown backbone 'timm:{plain}': {closest(plain, timm.list_models())[:300]}")
    net = timm.create_model(plain, pretrained=pretrained, num_classes=0)
    return Backbone(net, net.num_features)


def read_state(file: Union[str, os.PathLike]) -> Dict[str, Any]:
    """A state dict from ``.safetensors`` or a torch file; never runs code from the file."""
    if not os.path.isfile(file):
        raise UserError(f"no weights file {file}")
    try:
        if str(file).endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a pickle, zip or header can be damaged in many ways
        raise UserError(f"cannot read the weights {file}: {str(error).splitlines()[0][:200]}") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{file} is not a state dict: expected parameter names and tensors")
    return state


def load_weights(net: nn.Module, file: Union[str, os.PathLike]) -> None:
    """Load a state-dict file into a backbone; a classifier in the file is left out, anything else must fit."""
    state = {key.removeprefix("module."): value for key, value in read_state(file).items()}
    own = net.state_dict()
    prefix = "net." if isinstance(net, Backbone) and not any(key.startswith("net.") for key in state) else ""
    state = {prefix + key: value for key, value in state.items()}
    body = {key: value for key, value in state.items() if key.removeprefix("net.").split(".")[0] not in _CLASSIFIERS}
    needed = (key for key in own if key.removeprefix("net.").split(".")[0] not in _CLASSIFIERS)
    missing = [key for key in needed if key not in body and not key.endswith("num_batches_tracked")]
    extra = [key for key in body if key not in own]
    other = [key for key in body if key in own and body[key].shape != own[key].shape]
    for kind, keys in (("lacks", missing), ("has unknown", extra), ("has another shape for", other)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise UserError(f"the weights {file} do not fit the backbone: the file {kind} {keys[0]}{more}; check -a")
    net.load_state_dict(body, strict=False)
