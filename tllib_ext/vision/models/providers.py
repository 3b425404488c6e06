"""Backbones of torchvision, tllib and timm, with tllib's ``out_features`` and without their classifiers."""

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Protocol

import torch
from torch import Tensor, nn

from tllib_ext import compat
from tllib_ext.errors import UserError, closest, first_line, one_line
from tllib_ext.typing import PathLike

__all__ = ["Backbone", "BackboneLike", "CLASSIFIERS", "from_torchvision", "from_tllib", "from_timm", "read_state"]

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


Builder = Callable[[bool, bool], Backbone]
_REMEDY = "(download=True, --download), or give weights, a file or 'none'"


def from_torchvision(name: str) -> Builder:
    """The builder of ``torchvision:NAME``."""

    def build(pretrained: bool, download: bool) -> Backbone:
        models = compat.torchvision().models
        net = models.get_model(name, weights=None)
        if pretrained:
            # The first ImageNet weights, which the paper started from; newer recipes have other features.
            url = models.get_model_weights(name).IMAGENET1K_V1.url
            file = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
            if not file.exists():
                if not download:
                    found = f"the ImageNet weights of {name} are not on this machine ({file})"
                    raise UserError(f"{found}: allow the download from {url} {_REMEDY}")
                with _download(url):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    digest = re.search(r"-([0-9a-f]{8,})\.", file.name)
                    torch.hub.download_url_to_file(url, str(file), digest and digest[1])
            net.load_state_dict(read_state(file))
        attribute = next(a for a in CLASSIFIERS if hasattr(net, a))
        classifier = getattr(net, attribute)
        linear: Any = classifier[-1] if isinstance(classifier, nn.Sequential) else classifier
        setattr(net, attribute, nn.Identity())
        return Backbone(net, linear.in_features)

    return build


def from_tllib(name: str) -> Builder:
    """The builder of ``tllib:NAME``."""
    models = compat.tllib("vision.models")
    if not callable(getattr(models, name, None)) or name.startswith("_"):
        names = [n for n, v in vars(models).items() if n.islower() and callable(v)]
        raise UserError(f"unknown backbone 'tllib:{name}': {closest(name, names)}")
    return _fetched(f"tllib:{name}", lambda pretrained: getattr(models, name)(pretrained=pretrained), "out_features")


def from_timm(name: str) -> Builder:
    """The builder of ``timm:NAME``."""

    def create(pretrained: bool) -> Any:
        timm = compat.timm()
        if name not in timm.list_models():
            raise UserError(f"unknown backbone 'timm:{name}': {closest(name, timm.list_models())[:300]}")
        config = timm.get_pretrained_cfg(name)
        # Transformers of this kind then take images of any size that their patches fill.
        dynamic = config is not None and config.fixed_input_size and name.startswith(("vit_", "eva", "deit"))
        return timm.create_model(name, pretrained, num_classes=0, **({"dynamic_img_size": True} if dynamic else {}))

    return _fetched(f"timm:{name}", create, "num_features")


def _fetched(name: str, create: Callable[[bool], Any], width: str) -> Builder:
    """A builder whose default weights are fetched by another library."""

    def build(pretrained: bool, download: bool) -> Backbone:
        if pretrained and not download:
            raise UserError(f"default weights of {name} come from the network: allow it {_REMEDY}")
        if pretrained:
            with _download(f"the weights of {name}"):
                net = create(True)
        else:
            net = create(False)
        return Backbone(net, getattr(net, width))

    return build


@contextmanager
def _download(what: str) -> Iterator[None]:
    """Whatever a download raises, as one line; libraries raise their own kinds of errors."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        remedy = "try again, or fetch them on another machine and give weights=FILE; without weights: weights=none"
        raise UserError(f"cannot download {what}: {one_line(error)[:200]}; {remedy}") from None


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
