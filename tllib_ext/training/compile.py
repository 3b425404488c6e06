"""``compile=True``: the backbone through ``torch.compile``, where that works."""

from contextlib import nullcontext
from typing import Callable, ContextManager, Optional

import torch
from torch import nn

__all__ = ["compile_network", "why_not", "eagerly"]


def why_not(device: torch.device) -> Optional[str]:
    """Why nothing can be compiled for ``device`` here, in a line; None if it can. A small function is compiled to find out."""
    try:
        torch.compile(lambda x: (x + 1).sin().sum())(torch.ones(8, device=device))
    except Exception as error:  # no compiler, no Triton, an unsupported Python: each has its own class
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0][:200] if lines else type(error).__name__
    return None


def compile_network(network: nn.Module, device: torch.device, say: Callable[[str], object] = print) -> bool:
    """Compile ``network`` in place (the names of its state stay); where that is impossible, log the reason and train without.

    The first steps take minutes: training, evaluation and each new batch size are compiled separately.
    """
    reason = why_not(device)
    if reason is not None:
        say(f"torch.compile does not work here, training without it: {reason}")
        return False
    network.compile()
    return True


def eagerly(module: nn.Module) -> ContextManager[None]:
    """A context without ``torch.compile``'s code: an evaluation in a new mode is over before its compilation would be."""
    stance = getattr(torch.compiler, "set_stance", None)  # from PyTorch 2.6 on
    if stance is None or all(m._compiled_call_impl is None for m in module.modules()):
        return nullcontext()
    return stance("force_eager")
