"""Number formats: which one a device gets, and the contexts that go with it. Losses are float32 whatever is chosen."""

from contextlib import nullcontext
from typing import Callable, ContextManager, Optional

import torch

from tllib_ext.errors import UserError

__all__ = ["Precision", "PRECISIONS"]

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")


class Precision:
    """Autocast context and gradient scaler of a format on a device.

    Args:
        name (str): ``fp32``, ``tf32``, ``bf16``, ``fp16`` or ``auto``: bf16 on CUDA that has it, else fp16 with a scaler;
            fp32 on everything else
        device (torch.device): where the networks are

    Examples::

        >>> Precision("auto", torch.device("cpu")).name
        'fp32'
    """

    def __init__(self, name: str, device: torch.device):
        if name == "auto":
            name = "fp32" if device.type != "cuda" else "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        if name not in PRECISIONS:
            raise UserError(f"precision={name!r}: expected one of {', '.join(PRECISIONS)}")
        if name in ("tf32", "fp16") and device.type != "cuda":
            raise UserError(f"precision={name!r} needs a CUDA device, this is {device}: use fp32 or bf16")
        self.name, self.device = name, device
        #: scales float16 gradients out of the underflow; None for the other formats
        self.scaler: Optional[torch.amp.GradScaler] = torch.amp.GradScaler(device.type) if name == "fp16" else None
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"

    @property
    def autocast(self) -> Callable[[], ContextManager[object]]:
        """Makes a fresh context for one step."""
        if self.name not in ("bf16", "fp16"):
            return nullcontext
        kind = torch.bfloat16 if self.name == "bf16" else torch.float16
        return lambda: torch.autocast(self.device.type, dtype=kind)
