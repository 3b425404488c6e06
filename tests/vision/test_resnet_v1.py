"""ResNet-50 with the strides of its paper."""

import pytest
import torch

from tllib_ext.errors import UserError
from tllib_ext.vision.models.backbones import build_backbone


def test_the_first_convolution_of_a_stage_has_the_stride():
    ours, theirs = build_backbone("resnet50_v1", None), build_backbone("resnet50", None)
    for name in ("layer2", "layer3", "layer4"):
        block, other = getattr(ours.net, name)[0], getattr(theirs.net, name)[0]
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1)) == (other.conv2.stride, other.conv1.stride)


def test_weights_of_both_have_the_same_names(tmp_path):
    theirs = build_backbone("resnet50", None).eval()
    torch.save(theirs.net.state_dict(), tmp_path / "w.pth")
    ours = build_backbone("resnet50_v1", str(tmp_path / "w.pth")).eval()
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert ours(x).shape == theirs(x).shape == (1, 2048) and not torch.allclose(ours(x), theirs(x))


def test_default_weights_are_an_error():
    with pytest.raises(UserError, match="resnet50_v1 has no default weights: give weights, a file"):
        build_backbone("resnet50_v1")
