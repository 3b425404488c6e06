"""``--compile``: the backbone through ``torch.compile``, or on a CPU through loops of our own, where that works."""

import time
from contextlib import nullcontext
from typing import Any, Callable, Optional

import torch
from torch import nn

from tllib_ext.cpu.compiled import use_kernels
from tllib_ext.cpu.kernels import library

__all__ = ["compile_network", "why_not", "eagerly"]


def why_not(device: torch.device) -> Optional[str]:
    """Why nothing can be compiled for ``device`` here, in a line; None if it can. It is tried: a CPU's loops, or one line."""
    try:
        if device.type == "cpu":
            library(torch.float32)
        else:
            torch.compile(lambda x: (x + 1).sin().sum())(torch.ones(8, device=device))
    except Exception as error:  # no compiler, no Triton, an unsupported Python: each has its own class
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0][:200] if lines else type(error).__name__
    return None


def compile_network(network: nn.Module, device: torch.device, say: Callable[[str], Any] = print) -> bool:
    """Compile ``network`` in place (its state's names stay as they are); where that cannot work, say so and go on.

    On a CPU, layers are exchanged for those of :mod:`tllib_ext.cpu.compiled`, ready in about a second: ``torch.compile``
    took minutes there and gave nothing. On other devices it is ``torch.compile``, whose first steps take minutes: training,
    training without gradients and each new batch size are compiled apart.
    """
    start, reason = time.perf_counter(), why_not(device)
    if reason is not None:
        say(f"--compile does not work here, going on without it: {reason}")
        return False
    if device.type == "cpu":
        layers = use_kernels(network) or "none"
        say(f"--compile: exchanged {layers} of the backbone's layers in {time.perf_counter() - start:.1f} s")
    else:
        network.compile()
    return True


def eagerly(module: nn.Module) -> Any:
    """A context without ``torch.compile``'s code: an evaluation in a new mode is over before its compilation would be."""
    stance = getattr(torch.compiler, "set_stance", None)  # from PyTorch 2.6 on
    if stance is None or all(m._compiled_call_impl is None for m in module.modules()):
        return nullcontext()
    return stance("force_eager")
