"""Cut a backbone in two at one of its stages: the part below, which stays as it is, and the rest, which is trained."""

import copy
from typing import Any, Dict, List, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError, closest
from tllib_ext.vision.models.providers import Backbone

__all__ = ["ALL", "HEAD", "Below", "cut", "stage_names"]

#: nothing of the backbone is trained, and all of it: the two ends of the list of stages.
HEAD, ALL = "head", "all"
#: a difference above this share of the largest feature is no rounding error.
_TOLERANCE = 1e-4


class _Reached(Exception):
    """Carries the input of the stage out of the network."""

    def __init__(self, maps: Tensor):
        super().__init__("the stage is reached")
        self.maps = maps


class _Stop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise _Reached(x)


class Below(nn.Module):
    """The part of a backbone below a stage, for inference: images to the stage's input.

    Args:
        net (torch.nn.Module): the backbone with the stage replaced by what ends its forward pass

    Shape:
        - Inputs: :math:`(N, 3, S, S)`; Outputs: :math:`(N, *)` float16, maps :math:`(N, C, H, W)` or tokens :math:`(N, T, D)`
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.exact(x).half()

    @torch.no_grad()
    def exact(self, x: Tensor) -> Tensor:
        """The stage's input as the network computes it, before it is rounded."""
        try:
            self.net(x)
        except _Reached as reached:
            return reached.maps
        raise RuntimeError("the backbone passed by its stage")


class _Order(NamedTuple):
    """When the modules of a network ran, seen from one of them."""

    before: List[nn.Module]
    after: List[nn.Module]
    calls: int
    single: bool


def stage_names(backbone: nn.Module) -> List[str]:
    """Names at which a backbone can usually be cut: its children, lists among them by their elements.

    Examples::

        >>> stage_names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))))
        ['0', '2.0', '2.1']
    """
    net = backbone.net if isinstance(backbone, Backbone) else backbone
    names: List[str] = []
    for name, child in net.named_children():
        blocks = isinstance(child, (nn.Sequential, nn.ModuleList)) and not name.startswith("layer")
        parts = [f"{name}.{i}" for i in range(len(child))] if blocks and len(child) > 1 else [name]  # type: ignore[arg-type]
        names += [part for part in parts if part != HEAD and any(True for _ in net.get_submodule(part).parameters())]
    return names


def cut(backbone: nn.Module, stage: str, size: int) -> Tuple[Below, nn.Module]:
    r"""``below`` and ``rest`` with :math:`\text{rest}(\text{below}(x)) = \text{backbone}(x)`, checked on a random image.

    Both share the parameters of the backbone, which is not used any more. What is computed before the stage is entered goes
    below; the stage and what comes after it is the rest, which keeps ``out_features``.

    Args:
        backbone (torch.nn.Module): with ``out_features``, in evaluation mode after the call
        stage (str): name of a module, ``layer4`` of a ResNet, ``features.14`` of a MobileNetV2, ``stages.3`` of a ConvNeXt,
            ``blocks.10`` of a vision transformer
        size (int): side of the images

    Examples::

        >>> from tllib_ext.vision.models.small_cnn import SmallCNN
        >>> below, rest = cut(SmallCNN(), "stages.2", 32)
        >>> maps = below(torch.zeros(2, 3, 32, 32)); maps.shape, maps.dtype, rest(maps.float()).shape
        (torch.Size([2, 48, 8, 8]), torch.float16, torch.Size([2, 128]))
    """
    module, backbone = _find(backbone, stage), backbone.eval()
    device = next(backbone.parameters()).device
    meta = device.type == "meta"
    image = torch.randn(1, 3, size, size, generator=None if meta else torch.Generator().manual_seed(0),
                        device=device if meta else None).to(device)  # fmt: skip
    order, expected = _trace(backbone, module, image)
    shared = [m for m in order.before if any(m is other for other in order.after) and list(m.parameters())]
    if order.calls != 1 or not order.single or shared:
        raise UserError(f"train_from={stage!r}: the backbone cannot be cut there: {_hint(backbone)}")
    below = Below(copy.deepcopy(backbone, {**_tensors(backbone), **_below_memo(backbone, module, order)}))
    rest = _without_embedding(copy.deepcopy(backbone, {**_tensors(backbone), **_rest_memo(order)}))
    try:
        with torch.no_grad():
            found = rest(below.exact(image))
        equal = found.shape == expected.shape and (
            meta or bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max().clamp(min=1e-6))
        )
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        equal = False  # the pieces do not fit together
    if not equal:
        raise UserError(f"train_from={stage!r}: paths of the backbone lead around this stage: {_hint(backbone)}")
    return below, rest


def _hint(backbone: nn.Module) -> str:
    return f"choose one of {HEAD}, {ALL}, {', '.join(stage_names(backbone)[1:])}"


def _find(backbone: nn.Module, stage: str) -> nn.Module:
    modules = dict(backbone.named_modules())
    for name in (stage, f"net.{stage}"):
        if stage and name in modules:
            return modules[name]
    raise UserError(f"train_from={stage!r}: {closest(stage, [HEAD, ALL, *stage_names(backbone)[1:]])}")


@torch.no_grad()
def _trace(backbone: nn.Module, stage: nn.Module, image: Tensor) -> Tuple[_Order, Tensor]:
    """Run the backbone and note what ends before the stage begins, and what begins after it."""
    before: List[nn.Module] = []
    after: List[nn.Module] = []
    inputs: List[int] = []

    def begins(module: nn.Module, args: Tuple[object, ...]) -> None:
        if module is stage:
            inputs.append(len(args))
        elif inputs:
            after.append(module)

    def ends(module: nn.Module, args: object, output: object) -> None:
        if not inputs:
            before.append(module)

    handles = [m.register_forward_pre_hook(begins) for m in backbone.modules()]
    handles += [m.register_forward_hook(ends) for m in backbone.modules()]
    try:
        expected = backbone(image)
    finally:
        for handle in handles:
            handle.remove()
    return _Order(before, after, len(inputs), inputs == [1]), expected


def _tensors(backbone: nn.Module) -> Dict[int, Tensor]:
    """For deepcopy: parameters and statistics are shared."""
    return {id(tensor): tensor for tensor in (*backbone.parameters(), *backbone.buffers())}


def _below_memo(backbone: nn.Module, stage: nn.Module, order: _Order) -> Dict[int, nn.Module]:
    """For deepcopy: the stage ends the pass, what neither ran before it nor contains it becomes the identity."""
    kept = {id(m) for module in order.before for m in module.modules()}
    holders = {id(m) for m in backbone.modules() if any(id(part) in kept or part is stage for part in m.modules())}
    memo: Dict[int, nn.Module] = {id(m): nn.Identity() for m in backbone.modules() if id(m) not in kept | holders}
    return {**memo, id(stage): _Stop()}


def _rest_memo(order: _Order) -> Dict[int, nn.Module]:
    """For deepcopy: what ran before becomes the identity."""
    gone = [m for m in order.before if not any(m is other for other in order.after)]
    return {id(m): nn.Identity() for m in gone}


def _without_embedding(rest: nn.Module) -> nn.Module:
    """A vision transformer adds its class token and the positions of the patches in its own code, not in a module."""
    net: Any = rest.net if isinstance(rest, Backbone) else rest
    if hasattr(net, "_pos_embed") and hasattr(net, "patch_embed"):  # timm
        for name in ("pos_embed", "cls_token", "reg_token"):
            setattr(net, name, None)
        object.__setattr__(net, "_pos_embed", _same)  # a method is found before a module of its name
    elif hasattr(net, "_process_input") and hasattr(net, "class_token"):  # torchvision
        width = net.class_token.shape[-1]
        object.__setattr__(net, "_process_input", _same)
        for owner, name, length in ((net, "class_token", 0), (net.encoder, "pos_embedding", 1)):
            delattr(owner, name)
            owner.register_buffer(name, torch.zeros(1, length, width), persistent=False)
    return rest


def _same(x: Tensor) -> Tensor:
    return x
