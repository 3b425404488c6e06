"""Classifier heads."""

from typing import Iterable, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CosineHead", "Heads", "ImageClassifierHead", "FeatureBottleneck", "FeatureIdentity", "mean_probabilities"]


class CosineHead(nn.Linear):
    r"""A bias-free linear layer on the L2-normalised feature, divided by a temperature:

    .. math::
        o_k = \langle w_k, f / \|f\| \rangle / T

    Args:
        in_features (int): width of f
        num_classes (int): K
        temperature (float): T

    Examples::

        >>> head = CosineHead(8, 3)
        >>> head.normalise_rows(); head(torch.randn(5, 8)).shape
        torch.Size([5, 3])
    """

    def __init__(self, in_features: int, num_classes: int, temperature: float = 0.05):
        super().__init__(in_features, num_classes, bias=False)
        self.temperature = temperature

    def forward(self, f: Tensor) -> Tensor:
        return self.on_unit(F.normalize(f, dim=-1))

    def on_unit(self, unit: Tensor) -> Tensor:
        """The logits of a feature that has unit length already."""
        return F.linear(unit, self.weight) / self.temperature

    @torch.no_grad()
    def normalise_rows(self) -> None:
        """Rescale every row to unit length (the methods do it once at the start of an iteration)."""
        self.weight.copy_(F.normalize(self.weight, dim=1))


class Heads(nn.Module):
    """Several heads on one feature; ``forward`` returns the list of their logits.

    Args:
        in_features (int): width of the feature
        num_classes (int): K
        num_heads (int): how many independently initialised heads
        kind (str): ``"cosine"`` (:class:`CosineHead`) or ``"linear"`` (with bias)
        temperature (float): of the cosine head

    Examples::

        >>> [y.shape for y in Heads(8, 3)(torch.randn(5, 8))]
        [torch.Size([5, 3]), torch.Size([5, 3])]
    """

    def __init__(self, in_features: int, num_classes: int, num_heads: int = 2, kind: str = "cosine", temperature: float = 0.05):
        super().__init__()
        cosine = kind == "cosine"
        self.heads = nn.ModuleList(
            CosineHead(in_features, num_classes, temperature) if cosine else nn.Linear(in_features, num_classes)
            for _ in range(num_heads)
        )

    def forward(self, f: Tensor) -> List[Tensor]:
        unit = F.normalize(f, dim=-1) if isinstance(self.heads[0], CosineHead) else f  # once for all heads
        return [head.on_unit(unit) if isinstance(head, CosineHead) else head(f) for head in self.heads]

    def normalise_rows(self) -> None:
        """Unit rows for the cosine heads; linear heads stay as they are."""
        for head in self.heads:
            if isinstance(head, CosineHead):
                head.normalise_rows()


class ImageClassifierHead(nn.Module):
    r"""One of the two heads F1, F2 of divergence optimisation: pooling, then a :class:`CosineHead`.

    Args:
        in_features (int): Dimension of input features
        num_classes (int): Number of classes
        temperature (float, optional): of the cosine head. Default: 0.05
        pool_layer (torch.nn.Module, optional): Default: average pooling of a feature map to a vector; ``nn.Identity()`` for
            a backbone that pools

    Shape:
        - Inputs: :math:`(minibatch, F, H, W)` where F = `in_features`, :math:`(minibatch, F)` without pooling
        - Output: :math:`(minibatch, C)` where C = `num_classes`.

    Examples::

        >>> F1, F2 = ImageClassifierHead(8, 3), ImageClassifierHead(8, 3)
        >>> f = torch.randn(5, 8, 7, 7)
        >>> logits = F1(f), F2(f)
        >>> logits[0].shape
        torch.Size([5, 3])
    """

    def __init__(self, in_features: int, num_classes: int, temperature: float = 0.05, pool_layer: Optional[nn.Module] = None):
        super().__init__()
        self.num_classes = num_classes
        self.pool_layer = pool_layer or nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = CosineHead(in_features, num_classes, temperature)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.pool_layer(inputs))

    def normalise_rows(self) -> None:
        """Rescale the weight's rows to unit length: once at the start of an iteration."""
        self.head.normalise_rows()


def mean_probabilities(logits: Iterable[Tensor]) -> Tensor:
    """Mean of the heads' class probabilities, in float32.

    Examples::

        >>> mean_probabilities([torch.zeros(1, 2), torch.tensor([[90.0, 0.0]])]).tolist()
        [[0.75, 0.25]]
    """
    return torch.stack([head.float().softmax(-1) for head in logits]).mean(0)


class FeatureBottleneck(nn.Sequential):
    r"""The trainable G on top of frozen features: Linear, batch norm (or none), ReLU.

    Args:
        in_features (int): width of the frozen features
        out_features (int): width of the heads' input
        norm (str): ``"batch"``, or ``"none"``, with which a sample's output depends on that sample alone
        lr_mult (float): learning rate of this layer as a multiple of the heads', the same for every method
            (:meth:`tllib_ext.methods.base.Method.backbone_groups`)
    """

    def __init__(self, in_features: int, out_features: int = 512, norm: str = "batch", lr_mult: float = 0.1):
        between = [nn.BatchNorm1d(out_features)] if norm == "batch" else []
        super().__init__(nn.Linear(in_features, out_features), *between, nn.ReLU())
        self.out_features, self.lr_mult = out_features, lr_mult


class FeatureIdentity(nn.Identity):
    """Features as they are, in the place of a backbone.

    Args:
        out_features (int): their width
    """

    def __init__(self, out_features: int):
        super().__init__()
        self.out_features = out_features
