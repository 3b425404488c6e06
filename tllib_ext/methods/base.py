r"""The contract between a method and the rest of the package.

A method owns its networks, names the players of its game (:meth:`Method.players`), turns one source and one target
batch into steps of those players (:meth:`Method.update`) and predicts (:meth:`Method.predict`). Target labels are
unreachable for it: a target :class:`Batch` has ``y=None``.
"""

from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Type,
    TypedDict,
    cast,
)

import numpy as np
import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError, closest
from tllib_ext.methods.context import Context
from tllib_ext.methods.hparams import Hparams, hparam
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.split import LabelSplit

__all__ = ["Batch", "Prediction", "Hparams", "hparam", "ParamGroup", "Players", "Method", "inverse_decay"]

#: Names that version 0.1 had for two presets; its configurations still load.
_RENAMED_PRESETS = {"official": "default", "released": "code"}
_Hparams = Hparams  # the class attribute of Method has the same name


class Batch(NamedTuple):
    """One domain's part of a step: inputs, labels (None for the target) and positions in the domain's list."""

    x: Tensor
    y: Optional[Tensor]
    index: Tensor  # type: ignore[assignment]  # a tuple has a method of that name

    @property
    def labels(self) -> Tensor:
        """``y`` of a source batch."""
        if self.y is None:
            raise ValueError("a target batch has no labels")
        return self.y


class Prediction(NamedTuple):
    r"""A method's output for N images.

    Shape:
        - probs: :math:`(N, K)`, rows sum to one
        - score: :math:`(N, )`, high = unknown, for every method
        - unknown: :math:`(N, )` bool, the method's own decision
    """

    probs: Tensor
    score: Tensor
    unknown: Tensor


class ParamGroup(TypedDict, total=False):
    """One parameter group of a player. ``params`` is required; every other entry that is absent is the run's.

    ``lr_mult`` multiplies the learning rate; ``lr``, ``momentum``, ``weight_decay`` and ``nesterov`` replace the run's.
    """

    params: Iterable[Tensor]
    lr_mult: float
    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool


class Players(Protocol):
    """What :meth:`Method.update` steps its players with; :class:`tllib_ext.training.players.SGDPlayers` implements it."""

    def descend(self, terms: Mapping[str, Tensor], *names: str) -> Tensor:
        """One step of the named players down the sum of ``terms``; returns the detached sum."""
        ...

    def accumulate(self, terms: Mapping[str, Tensor], *names: str) -> None:
        """Back-propagate a first part of the next :meth:`descend` of the same players at once."""
        ...

    def read_flag(self, flag: Tensor) -> Callable[[], bool]:
        """Start copying a device flag to the host; the returned function waits for the copy."""
        ...


def inverse_decay(progress: float, gamma: float = 10.0) -> float:
    r"""The learning-rate factor :math:`(1 + \gamma \min(1, p))^{-0.75}`; the DANCE family has :math:`\gamma = 10`.

    Args:
        progress (float): p, share of the run that is done
        gamma (float): :math:`\gamma`; 0 is a constant rate

    Examples::

        >>> inverse_decay(0.0), round(inverse_decay(1.0), 4)
        (1.0, 0.1656)
    """
    return (1.0 + gamma * min(1.0, progress)) ** -0.75


class Method(nn.Module):
    """A way to learn from noisy labelled source and unlabelled target images.

    Args:
        backbone (torch.nn.Module): images or features to features, with ``out_features`` (tllib's contract)
        split (LabelSplit): the label sets; ``split.num_source`` is the width of the classifier
        hparams (Hparams): an instance of the method's own ``Hparams``

    Shape:
        - predict: images or features :math:`(N, *)` to a :class:`Prediction`
    """

    #: the method's hyper-parameters; subclasses replace it.
    Hparams: ClassVar[Type[_Hparams]] = Hparams
    #: True if ``update`` uses target images.
    uses_target: bool = True
    #: True if adaptation needs no source images, only the network that was trained on them.
    source_free: ClassVar[bool] = False
    #: True if :meth:`prepare` does everything; a run then has one step, in which nothing moves and there is no loss.
    training_free: ClassVar[bool] = False
    #: True if the method estimates the source labels itself: no treatment of them (``labels_by``) may come before.
    estimates_labels: ClassVar[bool] = False
    #: steps of a run that trains a pretrained network from a stage on, unless it is told how many.
    stage_steps: ClassVar[int] = 100
    #: named sets of hyper-parameters: ``default`` (ours, first), ``code`` (the authors' released code), ``paper`` (the
    #: paper's text, where it differs).
    presets: ClassVar[Dict[str, Mapping[str, object]]] = {"default": {}}
    #: what ``Prediction.score`` is compared with, where there is one number for all images.
    threshold: Optional[float] = None
    #: prefixes of state names that only training needs (a memory of the target); a saved model leaves them out.
    training_only: Tuple[str, ...] = ()
    #: accumulates what :meth:`observe` is given; set by the run, None outside of one.
    audit: Optional[LossHistory] = None
    #: the facts of the run, for estimates that follow the features; set by the run, None outside of one.
    context: Optional[Context] = None
    #: number of steps of the run.
    steps: int = 1
    hparams: Any

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[_Hparams] = None):
        super().__init__()
        self.backbone = backbone
        self.split = split
        self.hparams = hparams if hparams is not None else self.Hparams()

    @classmethod
    def configure(cls, preset: Optional[str], options: Mapping[str, object]) -> _Hparams:
        """The hyper-parameters of a preset (None: the default one) with ``options`` on top."""
        name = _RENAMED_PRESETS.get(preset, preset) if preset else next(iter(cls.presets))
        if name not in cls.presets:
            raise UserError(f"unknown preset {preset!r} of {cls.__name__}: {closest(str(preset), cls.presets)}")
        return cls.Hparams.parse({**cls.presets[name], **options})

    @property
    def features_dim(self) -> int:
        """Width of the backbone's features."""
        return cast(int, self.backbone.out_features)

    def backbone_groups(self, mult: float = 1.0) -> List[ParamGroup]:
        """Parameter groups of G: pretrained weights learn at 0.1, a new layer at its own ``lr_mult``; both x ``mult``."""
        own = cast(float, getattr(self.backbone, "lr_mult", 0.1))
        return [{"params": self.backbone.parameters(), "lr_mult": own * mult}]

    def players(self) -> Dict[str, List[ParamGroup]]:
        """Name -> parameter groups of each player that can step; by default G, the backbone, and C, everything else."""
        rest = [p for name, p in self.named_parameters() if not name.startswith("backbone.")]
        return {"G": self.backbone_groups(), "C": [{"params": rest}]}

    def lr_factor(self, step: int, steps: int) -> float:
        """Factor of every learning rate in iteration ``step`` of ``steps``."""
        return inverse_decay(step / steps)

    def prepare(self, context: Context) -> None:
        """Called once before the first step (and before a checkpoint is loaded)."""
        self.context, self.steps = context, max(1, context.steps)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        """One iteration. Returns detached scalars by name; never calls ``.item()``."""
        raise NotImplementedError

    def balance_labels(self, given: np.ndarray) -> np.ndarray:
        """Labels by which source batches are class-balanced; called once, after :meth:`prepare`."""
        return given

    @torch.no_grad()
    def over_whole(self, domain: str, layers: nn.Module) -> Tensor:
        """The output of ``layers``, in evaluation mode, for G's features of a whole domain, ``source`` or ``target``."""
        assert self.context is not None
        training = layers.training
        layers.eval()
        out = layers(self.context.whole(domain).to(next(layers.parameters())))
        layers.train(training)
        return out

    def observe(self, source: Batch, loss: Tensor, logits: Sequence[Tensor]) -> None:
        """Give the audit of the source labels one step's per-sample losses and the heads' logits."""
        if self.audit is not None:
            self.audit.add(source.index, loss, logits)

    def refresh(self) -> None:
        """Compute what :meth:`predict` needs of the whole target; called before a domain is predicted. May use the host."""
        rule = getattr(self, "rule", None)
        if rule is not None and self.context is not None:
            rule.estimate(self.context)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Classify ``x`` in evaluation mode."""
        raise NotImplementedError
