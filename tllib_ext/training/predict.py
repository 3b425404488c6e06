"""Run a network over a whole domain, shared out among the processes and merged in list order."""

from typing import Callable, Iterable, Iterator, List, Optional, Protocol, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from tllib_ext.distributed import gather_objects, rank, world_size
from tllib_ext.evaluation.openset import OpenSetEvaluator, OpenSetReport
from tllib_ext.methods.base import Method, Prediction
from tllib_ext.training.compile import eagerly
from tllib_ext.training.domain import Domain

__all__ = ["over_domain", "predict_domain", "evaluate_domain", "report_on", "features_of", "prediction_of_arrays"]


class Samples(Protocol):
    """What :func:`over_domain` needs of a domain or a part of one."""

    def __len__(self) -> int: ...

    def in_order(self, batch: int, rank: int = 0, world: int = 1) -> Iterator[Tuple[np.ndarray, Tensor]]:
        """Indices and inputs of one process's share."""


@torch.no_grad()
def over_domain(
    run: Callable[[Tensor], Tuple[Tensor, ...]], module: nn.Module, domain: Samples, batch: int, title: Optional[str] = None
) -> List[np.ndarray]:
    """``run`` in evaluation mode on every input of ``domain``; its outputs as arrays in list order.

    The mode of every sub-module comes back as it was.
    """
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        size = -(-len(domain) // (batch * world_size()))
        chunks = domain.in_order(batch, rank(), world_size())
        bar = tqdm(chunks, title, size, unit="batch", leave=False, disable=True if title is None else None)
        with eagerly(module):
            parts = [[(value.float() if value.is_floating_point() else value).cpu().numpy() for value in run(x)] for _, x in bar]
    finally:
        for m, mode in modes.items():
            m.training = mode
    mine = [np.concatenate(column) for column in zip(*parts)]
    return [np.concatenate(columns) for columns in zip(*(p for p in gather_objects(mine) if p))]


def predict_domain(method: Method, domain: Domain, batch: int = 128, title: Optional[str] = None) -> Prediction:
    """The method's prediction of every image, as arrays in list order."""
    method.refresh()
    return prediction_of_arrays(over_domain(lambda x: tuple(method.predict(x)), method, domain, batch, title))


def prediction_of_arrays(columns: Iterable[np.ndarray]) -> Prediction:
    """The tuple of a method's predictions, of arrays in place of tensors."""
    return Prediction(*columns)  # type: ignore[arg-type]


def evaluate_domain(method: Method, domain: Domain, batch: int = 128) -> Tuple[Prediction, Optional[OpenSetReport]]:
    """Predictions and their report; no report for an unlabelled target."""
    prediction = predict_domain(method, domain, batch)
    return prediction, report_on(prediction, method, domain)


def report_on(
    prediction: Prediction, method: Method, domain: Domain, kept: Optional[np.ndarray] = None
) -> Optional[OpenSetReport]:
    """The metrics of the predictions on a whole domain, or on the samples that are ``kept``; None for an unlabelled one."""
    if domain.view.targets is None:
        return None
    evaluator = OpenSetEvaluator(method.split)
    rows = np.arange(len(domain)) if kept is None else kept
    evaluator.update(prediction_of_arrays(np.asarray(values)[rows] for values in prediction), domain.view.targets[rows], rows)
    return evaluator.compute()


def features_of(backbone: nn.Module, domain: Domain, batch: int = 128, title: Optional[str] = None) -> Tensor:
    """Features of a whole domain in list order, :math:`(N, D)` on the CPU."""
    (features,) = over_domain(lambda x: (backbone(x),), backbone, domain, batch, title)
    return torch.from_numpy(features)
