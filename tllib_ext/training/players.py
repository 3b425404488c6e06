"""The optimisers of a run: backward, scaling, averaging over processes, the step itself and the finite check."""

import math
from functools import reduce
from operator import add
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.sgd import sgd

from tllib_ext.distributed import world_size
from tllib_ext.errors import NonFiniteLoss
from tllib_ext.methods.base import ParamGroup, inverse_decay
from tllib_ext.typing import Record

__all__ = ["SGDPlayers", "with_warmup"]


class SGDPlayers:
    r"""One SGD optimiser per player of the game; a method names the players that descend on a loss.

    Implements :class:`tllib_ext.methods.base.Players`.

    Args:
        groups (dict): player's name -> list of :class:`~tllib_ext.methods.base.ParamGroup`
        lr (float): learning rate of a group with ``lr_mult`` 1 and no ``lr`` of its own
        total_steps (int): S of the schedule
        momentum (float), weight_decay (float), nesterov (bool): SGD's, of groups without their own
        scaler (torch.amp.GradScaler, optional): for float16
        schedule (callable): step, total steps -> learning-rate factor

    Examples::

        >>> w = torch.nn.Parameter(torch.ones(1))
        >>> play = SGDPlayers({"C": [{"params": [w]}]}, lr=0.1, total_steps=10)
        >>> play.begin(0); loss = play.descend({"square": (w ** 2).sum()}, "C"); w.item() < 1
        True
    """

    #: on CUDA, losses are checked in groups of this many descents.
    CHECK_EVERY = 64

    def __init__(
        self,
        groups: Mapping[str, Sequence[ParamGroup]],
        lr: float = 0.01,
        total_steps: int = 1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        nesterov: bool = True,
        scaler: Optional[torch.amp.GradScaler] = None,
        schedule: Callable[[int, int], float] = lambda step, steps: inverse_decay(step / steps),
    ):
        self.lr, self.total_steps, self.scaler, self.schedule = lr, max(1, total_steps), scaler, schedule
        self.step = 0
        #: check every loss before stepping, even where that means waiting for the device
        self.check_at_once = False
        self._deferred: List[Tuple[int, Tuple[str, ...], Tensor]] = []
        self._accumulated: Optional[Tuple[Dict[str, Tensor], Sequence[Optional[Tensor]]]] = None
        self.optimisers: Dict[str, torch.optim.SGD] = {}
        for name, player in groups.items():
            # base_lr, since PyTorch's "lr" is overwritten in every iteration
            own: List[Record] = [
                {"lr_mult": 1.0, **group, "params": list(group["params"]), "base_lr": group.get("lr", lr)} for group in player
            ]
            device = own[0]["params"][0].device.type
            self.optimisers[name] = optimiser = torch.optim.SGD(
                own, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov,
                fused=device in ("cpu", "cuda"),
            )  # fmt: skip
            # Not left to PyTorch: if a scaler skips the first step, its fused SGD continues with uninitialised memory.
            for p in (p for group in optimiser.param_groups for p in group["params"] if group["momentum"]):
                optimiser.state[p]["momentum_buffer"] = torch.zeros_like(p, requires_grad=False)

    def begin(self, step: int) -> None:
        """Set every learning rate for iteration ``step`` (0, 1, …)."""
        self.step, self._accumulated = step, None
        factor = self.schedule(step, self.total_steps)
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:  # .get: checkpoints of version 0.1 have no base_lr
                group["lr"] = group.get("base_lr", self.lr) * factor * group["lr_mult"]

    def accumulate(self, terms: Mapping[str, Tensor], *names: str) -> None:
        """Back-propagate a first part of the next :meth:`descend` of the same players at once, so that its graph is
        freed before the other part's is built."""
        values = {name: value.detach() for name, value in terms.items()}
        self._accumulated = values, self._gradients(_total(terms), self._params(names))

    def _params(self, names: Sequence[str]) -> List[Tensor]:
        groups = [group for name in names for group in self.optimisers[name].param_groups]
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def _gradients(self, loss: Tensor, params: List[Tensor]) -> Sequence[Optional[Tensor]]:
        scaled = self.scaler.scale(loss) if self.scaler is not None else loss
        return torch.autograd.grad(scaled, params, allow_unused=True)

    def descend(self, terms: Mapping[str, Tensor], *names: str) -> Tensor:
        """One step of the named players down the sum of ``terms``; no other player moves or receives a gradient.

        Returns:
            the detached sum, with what was accumulated
        """
        chosen, params = [self.optimisers[name] for name in names], self._params(names)
        first, grads = self._accumulated or ({}, [None] * len(params))
        self._accumulated = None
        self._check_finite({**first, **terms})
        if terms:
            rest = self._gradients(_total(terms), params)
            grads = [b if a is None else a if b is None else a + b for a, b in zip(grads, rest)]
        terms = {**first, **terms}
        if world_size() > 1:
            grads = _average(params, grads)
        # A scaler treats an infinite gradient itself: it skips the step and lowers the scale.
        if self.check_at_once and self.scaler is None and not all(g.isfinite().all() for g in grads if g is not None):
            raise NonFiniteLoss(f"gradient of {' + '.join(terms)}", self.step)
        for p, grad in zip(params, grads):
            p.grad = grad if grad is None else _laid_out_like(p, grad)
        for optimiser in chosen:
            if self.scaler is not None:
                self.scaler.step(optimiser)
            else:
                _step(optimiser)
        if self.scaler is not None:
            # Once per descent, not per iteration: a player may step several times in one iteration.
            self.scaler.update()
        for p in params:
            p.grad = None
        return _total({name: value.detach() for name, value in terms.items()})

    def read_flag(self, flag: Tensor) -> Callable[[], bool]:
        """Start copying a device flag to the host; the returned function waits for it only when called."""
        if flag.device.type != "cuda":
            return lambda: bool(flag)
        host = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(flag, non_blocking=True)
        event = torch.cuda.Event()
        event.record()

        def read() -> bool:
            event.synchronize()
            return bool(host)

        return read

    def _check_finite(self, terms: Mapping[str, Tensor]) -> None:
        values = torch.stack([value.detach().float() for value in terms.values()])
        if world_size() > 1:
            # All processes stop together, or the others would wait for this one for ever.
            dist.all_reduce(values)
        if values.device.type == "cuda" and not self.check_at_once:
            self._deferred.append((self.step, tuple(terms), values))
            if len(self._deferred) >= self.CHECK_EVERY:
                self.check_pending()
        else:
            _raise_non_finite(self.step, tuple(terms), values)

    def check_pending(self) -> None:
        """Check the losses whose check was deferred to avoid waiting for the device."""
        pending, self._deferred = self._deferred, []
        for step, names, values in pending:
            _raise_non_finite(step, names, values)

    def state_dict(self) -> Record:
        """Momentum and scaler; the schedule follows from the step."""
        state: Record = {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()}
        return {"optimisers": state, "scaler": self.scaler.state_dict() if self.scaler is not None else None}

    def load_state_dict(self, state: Record) -> None:
        """Undo :meth:`state_dict`."""
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
            for p, own in optimiser.state.items():  # PyTorch does not compare the shapes
                momentum = own.get("momentum_buffer")
                if momentum is not None and momentum.shape != p.shape:
                    raise ValueError(f"momentum of shape {tuple(momentum.shape)} for a parameter of shape {tuple(p.shape)}")
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])


def with_warmup(schedule: Callable[[int, int], float], warmup: Optional[int]) -> Callable[[int, int], float]:
    """``schedule`` with a linear growth over the first ``warmup`` steps.

    Examples::

        >>> schedule = with_warmup(lambda step, steps: 1.0, 4)
        >>> [schedule(step, 9) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return schedule if warmup is None else lambda step, steps: schedule(step, steps) * min(1.0, (step + 1) / warmup)


def _total(terms: Mapping[str, Tensor]) -> Tensor:
    return reduce(add, terms.values())  # not sum(): it would begin with 0 + the first


def _raise_non_finite(step: int, names: Tuple[str, ...], values: Tensor) -> None:
    for name, value in zip(names, values.tolist()):
        if not math.isfinite(value):
            raise NonFiniteLoss(name, step, value)


@torch.no_grad()
def _step(optimiser: torch.optim.SGD) -> None:
    """The step of PyTorch's SGD by its function: the method's hooks and profiler ranges cost as much as a small player's step."""
    names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "foreach", "fused")
    for group in optimiser.param_groups:
        params = [p for p in group["params"] if p.grad is not None]
        if params:
            buffers = [optimiser.state.get(p, {}).get("momentum_buffer") for p in params]
            sgd(params, [p.grad for p in params], buffers, **{name: group[name] for name in names})


def _laid_out_like(p: Tensor, grad: Tensor) -> Tensor:
    """``grad`` in the memory layout of ``p``: fused optimisers step through memory, not through indices."""
    if grad.stride() == p.stride() or (grad.is_contiguous() and p.is_contiguous()):
        return grad
    return torch.empty_like(p).copy_(grad)


def _average(params: List[Tensor], grads: Sequence[Optional[Tensor]]) -> List[Tensor]:
    """Average over processes in one message; a parameter unused here may have been used elsewhere."""
    full = [torch.zeros_like(p) if grad is None else grad for p, grad in zip(params, grads)]
    flat = torch.cat([grad.reshape(-1) for grad in full])
    dist.all_reduce(flat)
    flat /= world_size()
    parts = flat.split([grad.numel() for grad in full])
    return [part.view_as(grad) for part, grad in zip(parts, full)]
