"""The facts of a run that a method gets before its first step."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional, Set

import numpy as np
from torch import Tensor

__all__ = ["Context", "TOLD"]

#: facts -> what a method that reads them was told, for comparison tables.
TOLD = {"rate": "noise rate", "target_inputs": "whole target", "target_features": "whole target"}


@dataclass
class Context:
    """Facts of a run; no target labels, no clean source labels.

    Args:
        steps (int): how many iterations there will be
        num_source (int), num_target (int): list lengths
        rate (float): the noise rate that the experimenter gave, the paper's drop rate
        seed (int): the run's seed
        source_labels (numpy.ndarray, optional): the given, possibly wrong, labels in list order
        source_weights (numpy.ndarray, optional): their weights, 0 for a label that is left out; None: all equal
        source_inputs, target_inputs (tensor, optional): frozen features, where these are what the networks get
        say (callable): writes a line to the log
        source_features, target_features (callable, optional): the current G's features of a whole domain in list
            order, in evaluation mode and without augmentation: :math:`(N, D)`, on the CPU

    :attr:`told` names the facts in :data:`TOLD` that were read so far.

    Examples::

        >>> context = Context(steps=10, rate=0.2)
        >>> context.seed + context.rate, context.told
        (0.2, {'noise rate'})
    """

    steps: int
    num_source: int = 0
    num_target: int = 0
    rate: float = 0.0
    seed: int = 0
    source_labels: Optional[np.ndarray] = field(default=None, repr=False)
    source_weights: Optional[np.ndarray] = field(default=None, repr=False)
    source_inputs: Optional[Tensor] = field(default=None, repr=False)
    target_inputs: Optional[Tensor] = field(default=None, repr=False)
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    source_features: Optional[Callable[[], Tensor]] = field(default=None, repr=False)
    target_features: Optional[Callable[[], Tensor]] = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.told: Set[str] = set()

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattribute__(self, name):
            if name in TOLD:
                self.told.add(TOLD[name])
            return object.__getattribute__(self, name)
