"""Backbones of torchvision, tllib and timm, with tllib's ``out_features`` and without their classifiers."""

import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Protocol, Tuple

import torch
from torch import Tensor, nn

from tllib_ext import compat
from tllib_ext.errors import UserError, closest, first_line
from tllib_ext.typing import PathLike, Record
from tllib_ext.vision.fetch import RemoteFile, provide
from tllib_ext.vision.models.pretrained import of_timm, of_tllib, of_torchvision

__all__ = [
    "Backbone",
    "BackboneLike",
    "NamedBackbone",
    "CLASSIFIERS",
    "from_torchvision",
    "from_tllib",
    "from_timm",
    "read_state",
]

#: names of the classifier in a network.
CLASSIFIERS = ("fc", "classifier", "head")


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


class BackboneLike(Protocol):
    """tllib's contract of a backbone: a module with the width of its features."""

    out_features: int


class NamedBackbone:
    """A builder whose default weights are one file: ``builder(pretrained, download)`` is a :class:`Backbone`.

    Args:
        create (callable): weights file or None -> network and its width
        weights (callable): the file of the default weights, None if there is none
        name (str): for messages
    """

    def __init__(
        self, name: str, create: Callable[[Optional[Path]], Tuple[nn.Module, int]], weights: Callable[[], Optional[RemoteFile]]
    ):
        self.name, self._create, self._weights = name, create, weights

    def weights(self) -> RemoteFile:
        """The file of the default weights and where it comes from."""
        remote = self._weights()
        if remote is None:
            raise UserError(f"{self.name} has no pretrained weights: give weights, a file or 'none'")
        return remote

    def __call__(self, pretrained: bool, download: bool) -> Backbone:
        if not pretrained:
            return Backbone(*self._create(None))
        remote = self.weights()
        provide([remote], download)
        try:
            return Backbone(*self._create(remote.path))
        except UserError:
            raise
        except Exception as error:  # whatever another library raises at a file that it did not expect
            remedy = "remove it, and the same command fetches it again"
            raise UserError(f"cannot load {remote.path} into {self.name}: {first_line(error)}; {remedy}") from None


def from_torchvision(name: str) -> NamedBackbone:
    """The builder of ``torchvision:NAME``."""

    def create(file: Optional[Path]) -> Tuple[nn.Module, int]:
        net = compat.torchvision().models.get_model(name, weights=None)
        if file is not None:
            net.load_state_dict(read_state(file))
        attribute = next(a for a in CLASSIFIERS if hasattr(net, a))
        classifier = getattr(net, attribute)
        linear: Any = classifier[-1] if isinstance(classifier, nn.Sequential) else classifier
        setattr(net, attribute, nn.Identity())
        return net, linear.in_features

    return NamedBackbone(name, create, lambda: of_torchvision(name))


def from_tllib(name: str) -> NamedBackbone:
    """The builder of ``tllib:NAME``."""
    models = compat.tllib("vision.models")
    if not callable(getattr(models, name, None)) or name.startswith("_"):
        names = [n for n, v in vars(models).items() if n.islower() and callable(v)]
        raise UserError(f"unknown backbone 'tllib:{name}': {closest(name, names)}")

    def create(file: Optional[Path]) -> Tuple[nn.Module, int]:
        net = getattr(models, name)(pretrained=file is not None)  # tllib looks for the file in the same place
        return net, net.out_features

    return NamedBackbone(f"tllib:{name}", create, lambda: of_tllib(name))


def from_timm(name: str) -> NamedBackbone:
    """The builder of ``timm:NAME``."""

    def create(file: Optional[Path]) -> Tuple[nn.Module, int]:
        timm = _timm_with(name)
        config = timm.get_pretrained_cfg(name)
        # Transformers of this kind then take images of any size that their patches fill.
        dynamic = config is not None and config.fixed_input_size and name.startswith(("vit_", "eva", "deit"))
        more: Record = {"dynamic_img_size": True} if dynamic else {}
        if file is not None:
            more["pretrained_cfg_overlay"] = {"file": str(file), "custom_load": False}
        net = timm.create_model(name, file is not None, num_classes=0, **more)
        return net, net.num_features

    def weights() -> Optional[RemoteFile]:
        _timm_with(name)
        return of_timm(name)

    return NamedBackbone(f"timm:{name}", create, weights)


def _timm_with(name: str) -> Any:
    """timm; an error if it has no network of that name."""
    timm = compat.timm()
    plain, _, tag = name.partition(".")  # of the weights, vit_base_patch16_siglip_224.v2_webli
    if tag and plain in timm.list_models() and name not in timm.list_pretrained(f"{plain}.*"):
        raise UserError(f"unknown weights of 'timm:{plain}': {closest(name, timm.list_pretrained(f'{plain}.*'))[:300]}")
    if plain not in timm.list_models():
        raise UserError(f"unknown backbone 'timm:{name}': {closest(name, timm.list_models())[:300]}")
    return timm


def read_state(file: PathLike) -> Dict[str, Tensor]:
    """A state dict from a ``.safetensors`` or torch file, which cannot run code."""
    if not os.path.isfile(file):
        raise UserError(f"no weights file {file}")
    try:
        if str(file).endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a pickle, zip or header can be damaged in many ways
        if kind := _other_kind(file):
            expected = "expected a .safetensors file, or a state dict that torch.save wrote"
            raise UserError(f"{file} holds no weights but {kind}: {expected}") from None
        raise UserError(f"cannot read the weights {file}: {first_line(error)}") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{file} is not a state dict: expected parameter names and tensors")
    return state


#: first bytes of a file that is no weights file -> what it is
_BEGINNINGS = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "a gzip archive (unpack it first)",
    b"version https://git-lfs": "a pointer of Git LFS (git lfs pull fetches the file)",
    b"<": "a web page (the download failed)",
}


def _other_kind(file: PathLike) -> str:
    """What a file is that holds no weights, by its first bytes; empty if that is not known."""
    with open(file, "rb") as stream:
        head = stream.read(64).lstrip()
    return next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), "")
