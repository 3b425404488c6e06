"""The device of a run by its name."""

import torch

from tllib_ext.errors import UserError, first_line

__all__ = ["pick_device"]


def pick_device(name: str) -> torch.device:
    """``auto`` takes CUDA, then MPS, then the CPU; a device that is not there is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name!r} cannot be used here: {first_line(error)}; try device='cpu'") from None
    return device
