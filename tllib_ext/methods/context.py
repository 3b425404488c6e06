"""The facts of a run that a method gets before its first step."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, List, Optional, Set, Union

import numpy as np
from torch import Tensor

from tllib_ext.errors import UserError

__all__ = ["Context", "TOLD"]

#: facts -> what a method that reads them was told, for comparison tables.
TOLD = {"rate": "noise rate", "target_inputs": "whole target", "target_features": "whole target",
        "unknown_share": "unknown share"}  # fmt: skip


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
        part_frozen (bool): G is the rest of a pretrained network, from some stage on
        say (callable): writes a line to the log
        unknown_share (float or str, optional): what the experimenter says of the share of unknown target samples: a number, or
            ``few``, ``some``, ``many``
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
    part_frozen: bool = False
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    unknown_share: Union[None, str, float] = None
    source_features: Optional[Callable[[], Tensor]] = field(default=None, repr=False)
    target_features: Optional[Callable[[], Tensor]] = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.told: Set[str] = set()

    def need(self, *facts: str) -> None:
        """Raise unless these facts are given."""
        missing = [fact for fact in facts if getattr(self, fact) is None]
        if missing:
            raise UserError(f"the method needs {' and '.join(missing)} of the run: pass them to its Context")

    def whole(self, domain: str) -> Tensor:
        """``source_features()`` or ``target_features()``."""
        self.need(f"{domain}_features")
        features: Callable[[], Tensor] = getattr(self, f"{domain}_features")
        return features()

    def rounds(self, number: int, first: int = 0) -> List[int]:
        """``number`` steps at equal distances, from step ``first`` on.

        Examples::

            >>> Context(steps=10).rounds(3, first=4)
            [4, 6, 8]
        """
        return [first + (self.steps - first) * i // number for i in range(number)]

    def warmup(self, given: Optional[int]) -> int:
        """Length of a warm-up: the given one, else 101 of the noisy UniDA code's 5001 steps, or 4 % of a shorter run."""
        return min(101, round(0.04 * self.steps)) if given is None else given

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattribute__(self, name):
            value = object.__getattribute__(self, name)
            if name in TOLD and value is not None:
                self.told.add(TOLD[name])
            return value
