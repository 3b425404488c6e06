"""The loop. What a step sees is a function of (seed, step), so it can begin at any step."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Callable, Dict, Iterator, Optional

import torch
from torch import Tensor
from tqdm import tqdm

from tllib_ext.distributed import rank
from tllib_ext.errors import NonFiniteLoss
from tllib_ext.methods.base import Batch, Method
from tllib_ext.modules.synced_batchnorm import average_buffers
from tllib_ext.training.players import SGDPlayers
from tllib_ext.typing import Record

__all__ = ["Meter", "Undo", "fit"]


class Meter:
    """Means of named scalar tensors since the last reading, kept on their device: no waiting in the loop."""

    def __init__(self) -> None:
        self._sums: Dict[str, Tensor] = {}
        self._counts: Dict[str, int] = {}

    def add(self, values: Dict[str, Tensor]) -> None:
        """Add one step's scalars."""
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> Dict[str, float]:
        """The means, and start anew."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def state_dict(self) -> Record:
        """For the checkpoint."""
        return {"sums": {name: total.cpu() for name, total in self._sums.items()}, "counts": dict(self._counts)}

    def load_state_dict(self, state: Record) -> None:
        """Undo :meth:`state_dict`."""
        sums, counts = dict(state["sums"]), dict(state["counts"])
        if sums.keys() != counts.keys() or not all(isinstance(total, Tensor) and total.dim() == 0 for total in sums.values()):
            raise ValueError("its running means are not scalars with counts")
        if not all(type(count) is int and count > 0 for count in counts.values()):
            raise ValueError("its running means have counts that are not positive")
        self._sums, self._counts = sums, counts


class Undo:
    """The state of before a step; calling it takes the step back, batch-norm statistics and momentum included."""

    def __init__(self, method: Method, play: SGDPlayers):
        self._parts = [part for part in (method, play, method.audit) if part is not None]
        self._states = [copy.deepcopy(part.state_dict()) for part in self._parts]

    def __call__(self) -> None:
        for part, state in zip(self._parts, self._states):
            part.load_state_dict(state)


def fit(
    method: Method,
    play: SGDPlayers,
    source: Iterator[Batch],
    target: Iterator[Batch],
    steps: range,
    seed: int = 0,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    after_step: Optional[Callable[[int], None]] = None,
    meter: Optional[Meter] = None,
    on_nonfinite: Optional[Callable[[NonFiniteLoss], None]] = None,
    log_every: int = 20,
    progress: Optional[bool] = None,
) -> None:
    """Train ``method`` for the iterations in ``steps``.

    Args:
        method (Method): its players' parameters change
        play (SGDPlayers): steps them
        source, target (iterators of Batch): one batch per step; target batches have no labels
        steps (range): e.g. ``range(0, 5001)``
        seed (int): with the step, of dropout and any other chance inside the method
        autocast (callable): a fresh precision context per step
        after_step (callable, optional): called with the number of finished steps: evaluation, checkpoints, signals
        meter (Meter, optional): collects what ``update`` returns, for whoever reads it
        on_nonfinite (callable, optional): told of a loss that is not finite; raises, or returns to drop that step,
            all of which is taken back if ``play.check_at_once``
        log_every (int): steps between two updates of the progress bar's numbers, which wait for the device
        progress (bool, optional): False hides the bar; None hides it where the output is no terminal
    """
    method.train()
    shown, meter = Meter(), meter if meter is not None else Meter()
    disable = None if progress is None else not progress
    # torch.manual_seed also collects a stack trace for every kind of device that is absent: a tenth of a small step.
    on_cpu = all(p.device.type == "cpu" for p in method.parameters())
    set_seed = torch.default_generator.manual_seed if on_cpu else torch.manual_seed
    with tqdm(total=steps.stop, initial=steps.start, unit="step", disable=disable, dynamic_ncols=True) as bar:
        for step, batch_s, batch_t in zip(steps, source, target):
            play.begin(step)
            undo = Undo(method, play) if play.check_at_once else None
            set_seed((seed * 1_000_003 + step) * 64 + rank() % 64)
            try:
                with autocast():
                    values = method.update(batch_s, batch_t, step, play)
            except NonFiniteLoss as error:
                if on_nonfinite is None:
                    raise
                on_nonfinite(error)
                if undo is not None:
                    undo()
                values = {}
            average_buffers(method)
            meter.add(values)
            if not bar.disable:
                shown.add(values)
                bar.update()
                if (step + 1) % log_every == 0:
                    bar.set_postfix({name: f"{value:.3f}" for name, value in shown.read().items()}, refresh=False)
            if after_step is not None:
                after_step(step + 1)
    play.check_pending()
