"""The backbones with short names, built without weights on the meta device, and the page that lists their sizes."""

import re

import backbones
import pytest
import torch
from conftest import ROOT

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.vision.models import BACKBONES, SHORTCUTS
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.inputs import check_image_size, image_input
from tllib_ext.vision.models.pretrained import of_timm
from tllib_ext.vision.models.stages import stage_names

pytestmark = pytest.mark.slow
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
HALF = (0.5, 0.5, 0.5)
#: name -> side of images, features, first channel's mean
EXPECTED = {
    "dinov2-small": (224, 384, 0.485), "dinov2-base": (224, 768, 0.485), "dinov2-large": (224, 1024, 0.485),
    "dinov3-small": (256, 384, 0.485), "dinov3-base": (256, 768, 0.485), "dinov3-large": (256, 1024, 0.485),
    "dinov3-convnext-tiny": (224, 768, 0.485),
    "clip-base32": (224, 768, CLIP_MEAN[0]), "clip-base": (224, 768, CLIP_MEAN[0]), "clip-large": (224, 1024, CLIP_MEAN[0]),
    "siglip2-base": (224, 768, 0.5), "siglip2-large": (256, 1024, 0.5),
    "convnextv2-nano": (224, 640, 0.485), "convnextv2-tiny": (224, 768, 0.485), "convnextv2-base": (224, 1024, 0.485),
}  # fmt: skip


@pytest.fixture(autouse=True)
def needs_timm():
    try:
        compat.timm()
    except compat.Missing:
        pytest.skip("timm is not installed")


@pytest.mark.parametrize("name", EXPECTED)
def test_sizes_normalisation_and_width(name):
    side, width, mean = EXPECTED[name]
    expected = image_input(name)
    assert (expected.size, expected.mean[0]) == (side, pytest.approx(mean)) and len(expected.std) == 3
    with torch.device("meta"):
        net = build_backbone(name, None).eval()
    assert net.out_features == width and tuple(net(torch.zeros(2, 3, side, side, device="meta")).shape) == (2, width)
    check_image_size(net, side)
    assert len(stage_names(net)) >= 4  # for --train-from


@pytest.mark.parametrize("name", EXPECTED)
def test_the_weights_are_one_file_whose_address_is_known(name):
    weights = of_timm(SHORTCUTS[name][0].removeprefix("timm:"))
    assert weights is not None and re.match("https://.*(safetensors|pth|pt|bin)", weights.url or str(weights.path))


def test_a_tag_chooses_among_weights():
    plain, tagged = (BACKBONES.get(f"timm:vit_base_patch16_siglip_224{tag}").weights().url for tag in ("", ".webli"))
    assert plain != tagged and "webli" in tagged
    with pytest.raises(UserError, match="unknown weights of 'timm:convnextv2_nano': did you mean 'convnextv2_nano.fcmae'"):
        build_backbone("timm:convnextv2_nano.fcma", None)


def test_the_page_has_the_sizes_of_today():
    page = (ROOT / "docs" / "backbones.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|.*\|$", page, re.M)
    assert set(rows) - {"-a"} == set(backbones.NAMES)
    some = [backbones.measure(name) for name in ("resnet18", "dinov2-small", "convnextv2-nano")]
    for line in backbones.table(some).strip().splitlines()[2:]:
        assert line in page, "python tools/backbones.py --write docs/backbones.md"
