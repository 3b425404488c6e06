"""The images that a backbone expects: their size and normalisation."""

from functools import lru_cache
from typing import NamedTuple, Optional, Tuple

from torch import nn

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.vision.models import SHORTCUTS
from tllib_ext.vision.transforms import MEAN, STD

__all__ = ["ImageInput", "image_input", "check_image_size", "resize_before_crop"]


class ImageInput(NamedTuple):
    """Side of the square images, mean and standard deviation of their channels, with values from 0 to 1."""

    size: int = 224
    mean: Tuple[float, ...] = MEAN
    std: Tuple[float, ...] = STD


@lru_cache(maxsize=None)
def image_input(arch: Optional[str]) -> ImageInput:
    """What the backbone ``arch`` was pretrained on: timm's data configuration, ImageNet's values for every other one.

    Examples::

        >>> image_input("resnet50").size, image_input("dinov2-small").size
        (224, 224)
    """
    name, size, _ = SHORTCUTS.get(arch or "", (arch, None, ""))
    if name is None or not name.startswith("timm:"):
        return ImageInput()
    try:
        config = compat.timm().get_pretrained_cfg(name.removeprefix("timm:"), allow_unregistered=True)
    except compat.Missing:  # building the network reports it
        config = None
    if config is None:
        return ImageInput(size or 224)
    return ImageInput(size or config.input_size[-1], tuple(config.mean), tuple(config.std))


def resize_before_crop(size: int) -> int:
    """The side to which images are resized before a crop of ``size`` is cut: 256 for 224."""
    return round(size * 8 / 7)


def check_image_size(net: nn.Module, size: int) -> None:
    """Raise if a transformer's patches do not fill images of this size."""
    embed = getattr(getattr(net, "net", None), "patch_embed", None)
    patch = getattr(embed, "patch_size", None)
    if embed is None or patch is None:
        return
    if getattr(embed, "strict_img_size", False) and embed.img_size is not None and embed.img_size[0] != size:
        raise UserError(f"image_size={size}: the backbone takes images of {embed.img_size[0]} x {embed.img_size[0]} only")
    if size % patch[0]:
        near = max(1, round(size / patch[0])) * patch[0]
        raise UserError(f"image_size={size}: the backbone has patches of {patch[0]} x {patch[0]} pixels; try image_size={near}")
