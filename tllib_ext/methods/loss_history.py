r"""Which source labels are wrong: the heads' loss on each sample, averaged over every visit of training.

One step's loss varies with the state of the network. Averaged over all visits the wrong labels have the larger losses,
because a network learns the regular before the irregular, and because small-loss selection drops wrong labels again.
"""

from typing import Dict, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from tllib_ext.distributed import world_size
from tllib_ext.modules.heads import mean_probabilities

__all__ = ["LossHistory"]


class LossHistory:
    """Accumulates loss and class probabilities of every source sample.

    Args:
        num_samples (int): length of the source list
        num_classes (int): K
        device (torch.device): of the accumulators
        given (tensor, optional): the given labels, where others are learnt: the losses are then theirs, from the probabilities

    Examples::

        >>> history = LossHistory(3, 2, torch.device("cpu"))
        >>> history.add(torch.tensor([1, 1]), torch.tensor([1., 3.]), [torch.zeros(2, 2)])
        >>> history.loss.tolist(), history.probs[1].tolist()
        ([nan, 2.0, nan], [0.5, 0.5])
    """

    def __init__(self, num_samples: int, num_classes: int, device: torch.device, given: Optional[Tensor] = None):
        self.given = given
        self._loss = torch.zeros(num_samples, device=device)
        self._visits = torch.zeros(num_samples, device=device)
        self._probs = torch.zeros(num_samples, num_classes, device=device)

    @torch.no_grad()
    def add(self, index: Tensor, loss: Tensor, logits: Sequence[Tensor]) -> None:
        """Add one step's samples; a sample drawn twice counts twice."""
        probs = mean_probabilities(logits)
        if self.given is not None:
            loss = -probs.gather(1, self.given[index, None]).squeeze(1).clamp(min=1e-12).log()
        self._loss.index_add_(0, index, loss.detach().float())
        self._visits.index_add_(0, index, torch.ones_like(loss, dtype=torch.float32))
        self._probs.index_add_(0, index, probs)

    @property
    def loss(self) -> Tensor:
        """Mean loss of each sample, NaN if it was never drawn."""
        return self._loss / self._visits.where(self._visits > 0, torch.full_like(self._visits, torch.nan))

    @property
    def probs(self) -> Tensor:
        """Mean class probabilities of each sample, NaN if it was never drawn."""
        return self._probs / self._visits.where(self._visits > 0, torch.full_like(self._visits, torch.nan)).unsqueeze(1)

    @property
    def visits(self) -> Tensor:
        """How often each sample was drawn."""
        return self._visits

    def merged(self) -> "LossHistory":
        """What all processes saw together."""
        other = LossHistory(len(self._probs), self._probs.shape[1], self._probs.device)
        for mine, theirs in zip(other._tensors(), self._tensors()):
            mine.copy_(theirs)
            if world_size() > 1:
                dist.all_reduce(mine)
        return other

    def state_dict(self) -> Dict[str, Tensor]:
        """For the checkpoint."""
        return dict(zip(("loss", "visits", "probs"), self._tensors()))

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Undo :meth:`state_dict`."""
        for mine, saved in zip(self._tensors(), (state["loss"], state["visits"], state["probs"])):
            mine.copy_(saved)

    def _tensors(self) -> List[Tensor]:
        return [self._loss, self._visits, self._probs]
