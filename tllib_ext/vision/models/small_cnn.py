r"""A small convolutional network for small pictures, with weights in the package.

The weights were trained on other classes than Glyphs has, by ``examples/pretrain_small_cnn.py``, as ImageNet's weights
were trained on other classes than Office-31 has.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

__all__ = ["WEIGHTS", "SmallCNN", "build"]

#: the weights in the package.
WEIGHTS = Path(__file__).parent / "weights" / "small_cnn.safetensors"


def _stage(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, pooling, batch norm; pooling first leaves a quarter of the work to the rest."""
    pool = nn.MaxPool2d(2) if stride == 1 else nn.Identity()
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, pool, nn.BatchNorm2d(after), nn.ReLU(inplace=True))


class SmallCNN(nn.Module):
    r"""Three convolutions and one linear layer, each with batch normalisation: 171,416 parameters.

    The linear layer gets a grid of 4 x 4 positions and not their average: a glyph is defined by where its strokes are.

    Args:
        out_features (int, optional): length of the feature. Default: 128

    Shape:
        - Inputs: :math:`(N, 3, S, S)`, normalised; made for :math:`S = 32`, any :math:`S \ge 8` works
        - Outputs: :math:`(N, F)`, not negative, :math:`F` = ``out_features``

    Examples::

        >>> net = SmallCNN()
        >>> net(torch.zeros(2, 3, 32, 32)).shape, net.out_features
        (torch.Size([2, 128]), 128)
    """

    def __init__(self, out_features: int = 128):
        super().__init__()
        self.out_features = out_features
        self.stages = nn.Sequential(_stage(3, 24, kernel=5, stride=2), _stage(24, 48), _stage(48, 64))
        self.grid = nn.AdaptiveAvgPool2d(4)
        linear = nn.Linear(64 * 16, out_features, bias=False)
        self.feature = nn.Sequential(nn.Flatten(), linear, nn.BatchNorm1d(out_features), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)  # a third faster on a CPU
        return self.feature(self.grid(self.stages(x)))


def build(pretrained: bool = True, download: bool = False) -> SmallCNN:
    """The builder of ``small_cnn`` in :data:`~tllib_ext.vision.models.BACKBONES`: nothing needs a download."""
    net = SmallCNN()
    if pretrained:
        net.load_state_dict(load_file(WEIGHTS))
    return net
