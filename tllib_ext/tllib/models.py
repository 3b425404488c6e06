"""Our backbones with the interface of ``tllib.vision.models``."""

from typing import Any, cast

from torch import Tensor, nn

from tllib_ext.vision.models.backbones import build_backbone

__all__ = ["FeatureMap", "backbone"]


class FeatureMap(nn.Module):
    r"""A backbone of ours as tllib's classifiers expect one: a map, which their pooling layer averages.

    Args:
        net (torch.nn.Module): backbone with ``out_features``
        num_classes (int, optional): width of a head made by :meth:`copy_head`. Default: 1000

    Shape:
        - Outputs: :math:`(N, F, 1, 1)` where ``net`` gives :math:`(N, F)`

    Examples::

        >>> import torch
        >>> backbone("small_cnn")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 128, 1, 1])
    """

    def __init__(self, net: nn.Module, num_classes: int = 1000):
        super().__init__()
        self.net, self.num_classes = net, num_classes
        self.out_features = cast(int, net.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, :, None, None]

    def copy_head(self) -> nn.Linear:
        """A new linear layer: our backbones keep no classifier that could be copied."""
        return nn.Linear(self.out_features, self.num_classes)


def backbone(name: str, pretrained: bool = False, progress: bool = True, **kwargs: Any) -> FeatureMap:
    """A backbone of ours with the arguments of tllib's; as there, ``pretrained`` fetches weights that are not here."""
    return FeatureMap(build_backbone(name, "default" if pretrained else None), **kwargs)
