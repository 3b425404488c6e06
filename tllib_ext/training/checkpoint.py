"""State on disk: ``checkpoints/last.pt`` to go on, ``model.safetensors`` to use."""

import io
import json
import os
from pathlib import Path
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError, first_line
from tllib_ext.io import atomic_path
from tllib_ext.methods.base import Method
from tllib_ext.training.earlier import upgrade
from tllib_ext.typing import PathLike, Record

__all__ = ["save_checkpoint", "load_checkpoint", "save_model", "load_model", "load_method"]

FORMAT = 1


def save_checkpoint(folder: Path, state: Record, keep: int = 1, name: str = "last") -> None:
    """Write ``checkpoints/last.pt`` whole; with ``keep`` > 1 that many ``step_N.pt`` stay beside it."""
    folder = Path(folder) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    # Through memory: torch's own writer turns a full disk into an error without a name.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    with atomic_path(folder / f"{name}.pt") as draft:
        draft.write_bytes(buffer.getbuffer())
    if keep > 1 and name == "last":
        with atomic_path(folder / f"step_{state['step']:08d}.pt") as draft:
            draft.write_bytes(buffer.getbuffer())
        for old in sorted(folder.glob("step_*.pt"))[:-keep]:
            old.unlink()


def load_checkpoint(folder: Path) -> Optional[Record]:
    """The last checkpoint of a run folder, None without one; only tensors and plain values are ever read."""
    file = Path(folder) / "checkpoints" / "last.pt"
    if not file.exists():
        return None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged or made by something else
        raise UserError(f"cannot read the checkpoint {file}: {first_line(error)}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{file} is not a checkpoint of this version (format {FORMAT}): start anew in another folder")
    return state


def save_model(file: Path, method: Method, frozen: Optional[nn.Module], metadata: Record) -> None:
    """The trained method (and the frozen backbone under it) as safetensors, with what is needed to use it as JSON."""
    from safetensors.torch import save

    state = {name: value for name, value in method.state_dict().items() if not name.startswith(method.training_only)}
    tensors = {f"method.{name}": value for name, value in state.items()}
    if frozen is not None:
        tensors.update({f"frozen.{name}": value for name, value in frozen.state_dict().items()})
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    # Through memory: the library's own writer turns a full disk into an error of its own, with no file's name.
    data = save(tensors, {"tllib_ext": json.dumps({"format": FORMAT, **metadata})})
    with atomic_path(file) as draft:
        draft.write_bytes(data)


def load_model(file: PathLike) -> Tuple[Record, Dict[str, Tensor], Dict[str, Tensor]]:
    """Metadata, the method's tensors and the frozen backbone's, of :func:`save_model`."""
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(file):
        raise UserError(f"no model in {Path(file).parent}: expected {file}, which a finished run writes")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = json.loads((opened.metadata() or {}).get("tllib_ext", "{}"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read the model {file}: {error}") from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise UserError(f"{file} was not written by this version of tllib_ext: it lacks the mark of format {FORMAT}")
    if not isinstance(metadata.get("method"), str) or not isinstance(metadata.get("hparams"), dict):
        raise UserError(f"{file} does not state which method it is of: expected a model that a finished run wrote")
    parts: Dict[str, Dict[str, Tensor]] = {"method": {}, "frozen": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value
    return upgrade(metadata), parts["method"], parts["frozen"]


def load_method(method: Method, tensors: Dict[str, Tensor], where: object) -> None:
    """Put the tensors of :func:`load_model` into a method built with the same settings."""
    own = {name: value for name, value in method.state_dict().items() if name.startswith(method.training_only)}
    try:
        method.load_state_dict({**own, **tensors})
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the model in {where} does not fit these settings: {reason}") from None
