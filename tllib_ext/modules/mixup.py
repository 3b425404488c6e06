"""Mixing shares of mixup."""

import torch
from torch import Tensor

__all__ = ["beta_shares"]


def beta_shares(a: int, *shape: int, device: torch.device) -> Tensor:
    """Numbers from Beta(a, a): ratios of gamma numbers, each a sum of ``a`` exponential ones.

    Examples::

        >>> beta_shares(4, 3, 1, device=torch.device("cpu")).shape
        torch.Size([3, 1])
    """
    gammas = -torch.rand(2, a, *shape, device=device).clamp(min=1e-12).log().sum(1)
    return gammas[0] / gammas.sum(0)
