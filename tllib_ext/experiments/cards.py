"""Memory and time that a run on images needs on a named GPU, from the recorded budget of its method.

``data/budget.json`` has passes, operations and memory of a step of every method: ResNet-50, 224 px, 36 images per domain,
counted on the meta device by ``python docs/budget.py``. Times are the operations over the published rate of the card times
the share of it that training a ResNet customarily reaches; they are right to a factor of two at best.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Dict, NamedTuple, Tuple

from tllib_ext.training.config import RunConfig
from tllib_ext.typing import Record

__all__ = ["CARDS", "Card", "Need", "budgets", "needed"]


class Card(NamedTuple):
    """Memory in GB, and the published rates in 10^12 operations per second: float32, and half precision with float32 sums."""

    memory: float
    fp32: float
    half: float


CARDS: Dict[str, Card] = {
    "T4": Card(16, 8.1, 65), "V100": Card(16, 15.7, 125), "RTX3070": Card(8, 20.3, 40.6), "RTX3090": Card(24, 35.6, 71),
    "RTX4090": Card(24, 82.6, 165), "A100": Card(40, 19.5, 312),
}  # fmt: skip
#: share of the published rates that is reached; half precision waits for memory, and is faster than fp32 by this factor at least.
_REACHED, _REACHED_HALF, _FASTER = 0.5, 0.2, 1.5
#: GB for the CUDA context and the workspace of convolutions.
_OVERHEAD = 1.0
#: batch of the record.
_BATCH = 36


class Need(NamedTuple):
    """What a run needs: GB of memory, GB with ``checkpoint_activations``, seconds per step."""

    memory: float
    checkpointed: float
    seconds: float


@lru_cache(maxsize=None)
def budgets() -> Dict[str, Record]:
    """Method -> its recorded step."""
    return json.loads((Path(__file__).parent / "data" / "budget.json").read_text(encoding="utf-8"))["methods"]


def budget_of(method: str) -> Record:
    """The recorded step; a method without one is taken to make one pass over each domain, as DANCE does."""
    return budgets().get(method, budgets()["dance"])


@lru_cache(maxsize=None)
def _ratios(arch: str, size: int) -> Tuple[float, float, float]:
    """Operations and activations of a backbone over those of the record, and the GB of its weights and momentum."""
    known = budgets()["source_only"]
    if (arch, size) == ("resnet50", 224):
        return 1.0, 1.0, known["weights_gb"]
    from tllib_ext.training.budget import measure  # imports torch

    found, batch = measure("source_only", arch, size, 8), 8 / _BATCH
    activations = (known["peak_gb"] - known["weights_gb"]) * batch
    return (found.flops / 1e12 / (known["tflop"] * batch), (found.peak - found.weights) / 1e9 / activations, found.weights / 1e9)


def needed(config: RunConfig, card: str) -> Need:
    """What a run on images needs on ``card``; half precision unless the run asks for fp32 or tf32.

    Examples::

        >>> config = RunConfig(method="divergence", precision="fp32")
        >>> 3 < needed(config, "V100").memory < 6, 0.3 < needed(config, "V100").seconds < 2
        (True, True)
    """
    step, batch = budget_of(config.method), config.batch_size / _BATCH
    operations, activations, weights = _ratios(config.arch or "resnet50", config.image_size or 224)
    memory, checkpointed = (
        _OVERHEAD + weights + (step[key] - step["weights_gb"]) * batch * activations
        for key in ("peak_gb", "peak_gb_checkpointed")
    )
    rate = CARDS[card].fp32 * _REACHED
    if config.precision not in ("fp32", "tf32"):
        rate = max(CARDS[card].half * _REACHED_HALF, rate * _FASTER)
    work = step["tflop_checkpointed" if config.checkpoint_activations else "tflop"]
    return Need(checkpointed if config.checkpoint_activations else memory, checkpointed, work * batch * operations / rate)
