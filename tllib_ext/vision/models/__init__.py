"""Backbones by name, without importing any of them."""

from typing import TYPE_CHECKING, Callable

from tllib_ext.registry import Registry

if TYPE_CHECKING:
    from tllib_ext.vision.models.providers import BackboneLike

__all__ = ["BACKBONES", "TORCHVISION"]

#: torchvision's networks, each with a line of help.
TORCHVISION = {
    "mobilenet_v2": "MobileNetV2", "resnet18": "ResNet-18", "resnet34": "ResNet-34",
    "resnet50": "ResNet-50, the paper's backbone", "resnet101": "ResNet-101", "resnet152": "ResNet-152",
    "resnext50_32x4d": "ResNeXt-50", "wide_resnet50_2": "Wide ResNet-50",
}  # fmt: skip

#: functions ``(pretrained, download) -> module`` with ``out_features``, where ``pretrained`` loads the default weights and
#: ``download`` allows fetching them. Entry-point group ``tllib_ext.backbones``.
BACKBONES: "Registry[Callable[[bool, bool], BackboneLike]]" = Registry(
    "backbone",
    {
        "small_cnn": ("tllib_ext.vision.models.small_cnn:build", "four layers for small pictures, weights in the package"),
        **{name: (f"torchvision:{name}", f"{text} (torchvision)") for name, text in TORCHVISION.items()},
    },
)
BACKBONES.register_prefix("tllib", "tllib_ext.vision.models.providers:from_tllib", "any of tllib.vision.models")
BACKBONES.register_prefix("timm", "tllib_ext.vision.models.providers:from_timm", "any of timm.list_models()")
BACKBONES.register_prefix("torchvision", "tllib_ext.vision.models.providers:from_torchvision", "", TORCHVISION)
