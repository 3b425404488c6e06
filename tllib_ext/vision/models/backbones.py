"""Build a backbone by name and load weights into it."""

import inspect
from typing import Callable, Dict, Optional

from torch import Tensor, nn

from tllib_ext.errors import UserError, first_line
from tllib_ext.typing import PathLike
from tllib_ext.vision.fetch import forbidden
from tllib_ext.vision.models import BACKBONES
from tllib_ext.vision.models.providers import CLASSIFIERS, Backbone, NamedBackbone, read_state

__all__ = ["build_backbone", "load_weights"]


def build_backbone(name: str, weights: Optional[str] = "default", download: bool = True, import_paths: bool = True) -> nn.Module:
    """A backbone by name.

    Args:
        name (str): a name in :data:`~tllib_ext.vision.models.BACKBONES`: ``resnet50``, ``tllib:NAME``, ``timm:NAME``, …, or
            ``package.module:function`` of your own
        weights (str, optional): ``"default"`` (pretrained), ``None`` or ``"none"`` (random), or a state-dict file
            (``.pth`` read with ``weights_only``, or ``.safetensors``), with or without its classifier
        download (bool): fetch default weights that are not on this machine yet. Default: True
        import_paths (bool): whether ``name`` may be code to import; not for names from files of others. Default: True
    """
    builder = BACKBONES.get(name, import_paths)
    if not isinstance(builder, NamedBackbone):  # of another package
        download = not forbidden(download)
    if BACKBONES.is_import_path(name):
        net = _call(name, builder, pretrained=weights == "default", download=download)
    else:
        net = builder(weights == "default", download)
    if not isinstance(net, nn.Module) or not hasattr(net, "out_features"):
        raise UserError(f"the backbone {name!r} is {type(net).__name__}: expected a torch module with out_features")
    if weights not in (None, "none", "default"):
        load_weights(net, str(weights))
    return net


def _call(name: str, builder: Callable[..., object], **offered: bool) -> object:
    """Call a function or class of the user with those of the offered arguments that it takes by name."""
    taken = inspect.signature(builder).parameters
    try:
        return builder(**{key: value for key, value in offered.items() if key in taken})
    except UserError:
        raise
    except Exception as error:  # code of others
        raise UserError(f"the backbone {name!r} cannot be built: {type(error).__name__}: {first_line(error)}") from error


def load_weights(net: nn.Module, file: PathLike) -> None:
    """Load a state-dict file into a backbone; a classifier in the file is left out, anything else must fit."""
    state = {key.removeprefix("module."): value for key, value in read_state(file).items()}
    prefix = "net." if isinstance(net, Backbone) and not any(key.startswith("net.") for key in state) else ""
    body, own = _without_classifier({prefix + key: value for key, value in state.items()}), net.state_dict()
    problems = {
        "lacks": [k for k in _without_classifier(own) if k not in body and not k.endswith("num_batches_tracked")],
        "has unknown": [key for key in body if key not in own],
        "has another shape for": [key for key in body if key in own and body[key].shape != own[key].shape],
    }
    for kind, keys in problems.items():
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise UserError(f"the weights {file} do not fit the backbone: the file {kind} {keys[0]}{more}")
    net.load_state_dict(body, strict=False)


def _without_classifier(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    return {key: value for key, value in state.items() if key.removeprefix("net.").split(".")[0] not in CLASSIFIERS}
