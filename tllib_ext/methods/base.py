r"""The contract between a method and everything around it.

A method owns its networks, says who the players are (:meth:`Method.players`), turns one source and one target batch
into steps of those players (:meth:`Method.update`) and labels images (:meth:`Method.predict`). It never sees target
labels: a target :class:`Batch` has ``y=None``.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError, closest
from tllib_ext.methods.context import Context
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.split import LabelSplit

__all__ = ["Batch", "Prediction", "Hparams", "hparam", "Method"]


class Batch(NamedTuple):
    """What a step sees of one domain: inputs, labels (None for the target) and positions in the domain's list."""

    x: Tensor
    y: Optional[Tensor]
    index: Tensor


class Prediction(NamedTuple):
    r"""What a method says of N images.

    Shape:
        - probs: :math:`(N, K)`, rows sum to one
        - score: :math:`(N, )`, high = unknown, for every method
        - unknown: :math:`(N, )` bool, the method's own decision
    """

    probs: Tensor
    score: Tensor
    unknown: Tensor


def hparam(default: Any, source: str, help: str = "") -> Any:
    """A hyper-parameter: its default, where that value comes from, what it does."""
    return field(default=default, metadata={"source": source, "help": help})


@dataclass
class Hparams:
    """Base of every method's hyper-parameters: a flat dataclass of :func:`hparam` fields."""

    @classmethod
    def parse(cls, values: Dict[str, Any]) -> "Hparams":
        """Build from names and (possibly textual) values; an unknown name is an error that lists the closest."""
        known = {f.name: f for f in fields(cls)}
        for name in values:
            if name not in known:
                raise UserError(f"unknown hyper-parameter {name!r} of {cls.__qualname__}: {closest(name, known)}")
        return cls(**{name: cls._convert(known[name], value) for name, value in values.items()})

    @staticmethod
    def _convert(f: Any, value: Any) -> Any:
        kind = f.metadata.get("type") or (type(f.default) if f.default is not None else None)
        if not isinstance(value, str) or kind is str:
            return value
        if value.lower() in ("none", "null"):
            return None
        if kind is bool:
            if value.lower() not in ("true", "false", "1", "0", "yes", "no"):
                raise UserError(f"hyper-parameter {f.name}={value!r}: expected true or false")
            return value.lower() in ("true", "1", "yes")
        for cast in (kind,) if kind in (int, float) else (int, float):
            try:
                number = cast(value)
            except ValueError:
                continue
            if not math.isfinite(number):
                raise UserError(f"hyper-parameter {f.name}={value!r}: expected a finite number")
            return number
        if kind in (int, float):
            raise UserError(f"hyper-parameter {f.name}={value!r}: expected a number ({kind.__name__})")
        return value


class Method(nn.Module):
    """A way to learn from noisy labelled source and unlabelled target images.

    Args:
        backbone (torch.nn.Module): images or features to features, with ``out_features`` (tllib's contract)
        split (LabelSplit): the label sets; ``split.num_source`` is the width of the classifier
        hparams (Hparams): an instance of the method's own ``Hparams``
    """

    #: the method's hyper-parameters; subclasses replace it.
    Hparams = Hparams
    #: True if ``update`` looks at target images.
    uses_target: bool = True
    #: named sets of hyper-parameters for ``--preset``; the first is the default.
    presets: Dict[str, Dict[str, Any]] = {"official": {}}
    #: what ``Prediction.score`` is compared with, where there is one number for all images.
    threshold: Optional[float] = None
    #: beginnings of state names that only training needs (a memory of the target); a saved model leaves them out.
    training_only: Tuple[str, ...] = ()
    #: accumulates what :meth:`observe` is told; set by the run, None outside of one.
    audit: Optional[LossHistory] = None

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[Hparams] = None):
        super().__init__()
        self.backbone = backbone
        self.split = split
        self.hparams = hparams if hparams is not None else self.Hparams()

    def players(self) -> Dict[str, List[Dict[str, Any]]]:
        """Name -> parameter groups (``params``, ``lr_mult``) of each player that can be told to step."""
        raise NotImplementedError

    def prepare(self, context: Context) -> None:
        """Called once before the first step (and before a checkpoint is loaded); most methods need nothing."""

    def update(self, source: Batch, target: Batch, step: int, play: "Any") -> Dict[str, Tensor]:
        """One iteration. Returns detached scalars by name; never calls ``.item()``."""
        raise NotImplementedError

    def balance_labels(self, given: np.ndarray) -> np.ndarray:
        """Labels by which source batches are class-balanced; asked once, after :meth:`prepare`."""
        return given

    def observe(self, source: Batch, loss: Tensor, logits: Sequence[Tensor]) -> None:
        """Tell the audit of the source labels what a step saw: per-sample losses and the heads' logits."""
        if self.audit is not None:
            self.audit.add(source.index, loss, logits)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Label ``x`` in evaluation mode."""
        raise NotImplementedError
