"""ResNet-50 with the strides of its paper, for weights that were trained so (Caffe's and Keras's models)."""

from tllib_ext.errors import UserError
from tllib_ext.vision.models.providers import Backbone, from_torchvision

__all__ = ["build"]


def build(pretrained: bool = True, download: bool = False) -> Backbone:
    """The builder of ``resnet50_v1`` in :data:`~tllib_ext.vision.models.BACKBONES`.

    Stride 2 is in the first 1x1 convolution of ``layer2``, ``layer3`` and ``layer4``; torchvision's ResNet-50 has it in the 3x3
    convolution after that. The names of the parameters are torchvision's. There are no default weights.
    """
    if pretrained:
        raise UserError("resnet50_v1 has no default weights: give weights, a file with torchvision's names, or weights='none'")
    backbone = from_torchvision("resnet50")(False, False)
    for name in ("layer2", "layer3", "layer4"):
        block = getattr(backbone.net, name)[0]
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return backbone
