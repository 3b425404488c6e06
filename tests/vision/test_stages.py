"""A backbone cut in two computes what the whole one does; a place where it cannot be cut is refused."""

import pytest
import torch
from torch import nn

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.stages import cut, stage_names


def usable(package):
    try:
        return bool(package())
    except compat.Missing:
        return False


CASES = [("small_cnn", "stages.1", 32), ("small_cnn", "feature", 32), ("resnet18", "layer4", 64), ("resnet18", "layer3", 64),
         ("resnet18", "layer4.1", 64), ("mobilenet_v2", "features.14", 64), ("mobilenet_v2", "features.18", 64)]  # fmt: skip
TIMM = [("timm:resnet18", "layer4", 64), ("convnext-tiny", "stages.3", 64), ("vit-small", "blocks.10", 64),
        ("vit-small", "norm", 64), ("dinov2-small", "blocks.10", 56), ("timm:regnety_002", "s4", 64)]  # fmt: skip


def check(net, stage, size):
    """Equal outputs, and every parameter in exactly one of the parts."""
    whole = list(net.parameters())
    below, rest = cut(net, stage, size)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(rest(below.exact(x)), net(x))
        assert torch.equal(below(x), below.exact(x).half()) and below(x).dtype == torch.float16
    parts = [{id(p) for p in part.parameters()} for part in (below, rest)]
    assert not parts[0] & parts[1] and parts[0] | parts[1] <= {id(p) for p in whole}
    assert rest.out_features == net.out_features
    rest(below(x).float()).sum().backward()
    assert all(p.grad is not None for p in rest.parameters()) and all(p.grad is None for p in below.parameters())
    return below, rest


@pytest.mark.parametrize("arch, stage, size", CASES)
def test_both_parts_make_the_whole(arch, stage, size):
    torch.manual_seed(0)
    net = build_backbone(arch, None)
    total = sum(p.numel() for p in net.parameters())
    parts = check(net.to(memory_format=torch.channels_last), stage, size)
    assert sum(p.numel() for part in parts for p in part.parameters()) == total


@pytest.mark.skipif(not usable(compat.timm), reason="timm is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("arch, stage, size", TIMM)
def test_networks_of_timm(arch, stage, size):
    torch.manual_seed(0)
    check(build_backbone(arch, None), stage, size)


@pytest.mark.skipif(not usable(compat.tllib), reason="tllib is not installed")
def test_networks_of_tllib_leave_the_pooling_to_the_rest():
    torch.manual_seed(0)
    _, rest = check(build_backbone("tllib:resnet18", None), "layer4", 64)
    assert rest(torch.randn(1, 256, 4, 4)).shape == (1, 512)


@pytest.mark.slow
def test_a_vision_transformer_of_torchvision():
    net = compat.torchvision().models.vit_b_16(image_size=32)
    net.heads, net.out_features = nn.Identity(), 768
    nn.init.normal_(net.class_token)
    check(net, "encoder.layers.encoder_layer_8", 32)


@pytest.mark.parametrize("stage, message", [
    ("layer5", "did you mean 'layer4'"), ("", "known: all, bn1, head, layer1"),
    ("layer4.0.conv2", "paths of the backbone lead around this stage: choose one of head, all, bn1, layer1, layer2"),
    ("layer4.0.relu", "cannot be cut there")])  # fmt: skip
def test_other_places_are_refused(stage, message):
    with pytest.raises(UserError, match="train_from=") as error:
        cut(build_backbone("resnet18", None), stage, 64)
    assert message in str(error.value)


def test_names_of_stages():
    assert stage_names(build_backbone("resnet18", None)) == ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]
    assert stage_names(build_backbone("mobilenet_v2", None))[14] == "features.14"
    assert stage_names(build_backbone("small_cnn", None))[:3] == ["stages.0", "stages.1", "stages.2"]


def test_on_the_meta_device():
    with torch.device("meta"):
        below, rest = cut(build_backbone("resnet18", None), "layer4", 64)
        assert rest(below(torch.empty(3, 3, 64, 64)).float()).shape == (3, 512)
