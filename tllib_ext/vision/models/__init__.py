"""Backbones by name, without importing any of them."""

from typing import TYPE_CHECKING, Callable, Dict, Optional, Tuple

from tllib_ext.registry import Registry

if TYPE_CHECKING:
    from tllib_ext.vision.models.providers import BackboneLike

__all__ = ["BACKBONES", "TORCHVISION", "SHORTCUTS"]

#: torchvision's networks, each with a line of help.
TORCHVISION = {
    "mobilenet_v2": "MobileNetV2", "resnet18": "ResNet-18", "resnet34": "ResNet-34",
    "resnet50": "ResNet-50, the paper's backbone", "resnet101": "ResNet-101", "resnet152": "ResNet-152",
    "resnext50_32x4d": "ResNeXt-50", "wide_resnet50_2": "Wide ResNet-50",
}  # fmt: skip

#: short names of timm's networks: its name, the size of images if not timm's, a line of help.
SHORTCUTS: Dict[str, Tuple[str, Optional[int], str]] = {
    "dinov2-small": ("timm:vit_small_patch14_dinov2", 224, "DINOv2 ViT-S/14"),  # its paper evaluates at 224, timm has 518
    "dinov2-base": ("timm:vit_base_patch14_dinov2", 224, "DINOv2 ViT-B/14"),
    "dinov2-large": ("timm:vit_large_patch14_dinov2", 224, "DINOv2 ViT-L/14"),
    "dinov3-small": ("timm:vit_small_patch16_dinov3.lvd1689m", None, "DINOv3 ViT-S/16"),
    "dinov3-base": ("timm:vit_base_patch16_dinov3.lvd1689m", None, "DINOv3 ViT-B/16"),
    "dinov3-large": ("timm:vit_large_patch16_dinov3.lvd1689m", None, "DINOv3 ViT-L/16"),
    "dinov3-convnext-tiny": ("timm:convnext_tiny.dinov3_lvd1689m", None, "DINOv3 ConvNeXt-T"),
    "clip-base32": ("timm:vit_base_patch32_clip_quickgelu_224.openai", None, "image tower of CLIP ViT-B/32"),
    "clip-base": ("timm:vit_base_patch16_clip_quickgelu_224.openai", None, "image tower of CLIP ViT-B/16"),
    "clip-large": ("timm:vit_large_patch14_clip_quickgelu_224.openai", None, "image tower of CLIP ViT-L/14"),
    "siglip2-base": ("timm:vit_base_patch16_siglip_224.v2_webli", None, "image tower of SigLIP 2 ViT-B/16"),
    "siglip2-large": ("timm:vit_large_patch16_siglip_256.v2_webli", None, "image tower of SigLIP 2 ViT-L/16"),
    "convnextv2-nano": ("timm:convnextv2_nano.fcmae_ft_in22k_in1k", None, "ConvNeXt V2-N"),
    "convnextv2-tiny": ("timm:convnextv2_tiny.fcmae_ft_in22k_in1k", None, "ConvNeXt V2-T"),
    "convnextv2-base": ("timm:convnextv2_base.fcmae_ft_in22k_in1k", None, "ConvNeXt V2-B"),
    "vit-small": ("timm:vit_small_patch16_224", None, "ViT-S/16, ImageNet-21k"),
    "convnext-tiny": ("timm:convnext_tiny", None, "ConvNeXt-T"),
}

#: functions ``(pretrained, download) -> module`` with ``out_features``, where ``pretrained`` loads the default weights and
#: ``download`` allows fetching them. Entry-point group ``tllib_ext.backbones``.
BACKBONES: "Registry[Callable[[bool, bool], BackboneLike]]" = Registry(
    "backbone",
    {
        "small_cnn": ("tllib_ext.vision.models.small_cnn:build", "four layers for small pictures, weights in the package"),
        "resnet50_v1": ("tllib_ext.vision.models.resnet_v1:build", "ResNet-50, original strides; weights from a file"),
        **{name: (f"torchvision:{name}", f"{text} (torchvision)") for name, text in TORCHVISION.items()},
        **{name: (timm_name, f"{text} (timm)") for name, (timm_name, _, text) in SHORTCUTS.items()},
    },
    import_paths=True,
    forms={"package.module:function": "your own: returns a module with out_features; may take pretrained"},
)
BACKBONES.register_prefix("tllib", "tllib_ext.vision.models.providers:from_tllib", "any of tllib.vision.models")
BACKBONES.register_prefix("timm", "tllib_ext.vision.models.providers:from_timm", "any of timm.list_models()")
BACKBONES.register_prefix("torchvision", "tllib_ext.vision.models.providers:from_torchvision", "", TORCHVISION)
