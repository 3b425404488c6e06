"""The embedded data set and its backbone."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.vision.datasets import glyph_render, glyphs
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.small_cnn import WEIGHTS, SmallCNN


@pytest.fixture()
def few(monkeypatch):
    """One picture per class and domain: the layout does not depend on the number."""
    monkeypatch.setattr(glyphs, "PER_CLASS", 1)


@pytest.fixture()
def blank(few, monkeypatch):
    """And nothing on it, for tests that do not look."""
    monkeypatch.setattr(glyphs, "render", lambda *_: Image.new("RGB", (36, 36)))


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_classes_and_split():
    assert len(glyphs.CLASSES) == len(set(glyphs.CLASSES)) == 31
    split = LabelSplit.parse(glyphs.SPLIT, glyphs.CLASSES)
    assert split.shared == tuple(f"letter_{c}" for c in "ABCDEFGHIJ")
    assert split.source_private == tuple(f"letter_{c}" for c in "KLMNOPQRST")
    assert split.target_private[-1] == "digit_9" and len(split.target_private) == 11
    assert glyphs.RESIZE == glyph_render.SIZE > glyphs.CROP and glyphs.FLIP is False


def test_layout_is_tllibs(tmp_path, few):
    root = glyphs.write_glyphs(tmp_path / "new" / "glyphs", progress=False)
    for domain in glyphs.DOMAINS.values():
        lines = (root / "image_list" / f"{domain}.txt").read_text().splitlines()
        assert lines[0] == f"{domain}/images/letter_A/0001.png 0"
        assert Counter(int(line.split()[1]) for line in lines) == {label: 1 for label in range(31)}
        for line in lines:
            path, label = line.split()
            assert path.split("/")[2] == glyphs.CLASSES[int(label)]
            with Image.open(root / path) as image:
                assert (image.size, image.mode, image.format) == ((36, 36), "RGB", "PNG")
    assert sorted(path.name for path in root.iterdir()) == ["glyphs.json", "hand", "image_list", "print", "scene"]


def test_same_seed_same_bytes_other_seed_other_pictures(tmp_path, few):
    first, second, other = (glyphs.write_glyphs(tmp_path / name, seed, progress=False)
                            for name, seed in (("a", 0), ("b", 0), ("c", 1)))  # fmt: skip
    assert contents(first) == contents(second)
    one, two = contents(first), contents(other)
    assert one.keys() == two.keys()
    assert all(one[name] != two[name] for name in one if name.endswith(".png"))


def test_written_once(tmp_path, blank, monkeypatch):
    root = glyphs.write_glyphs(tmp_path / "glyphs", progress=False)
    monkeypatch.setattr(glyphs, "_draw", lambda *_: pytest.fail("drawn again"))
    assert glyphs.write_glyphs(root) == root


def test_older_version_is_replaced(tmp_path, blank, monkeypatch):
    root = glyphs.write_glyphs(tmp_path / "glyphs", progress=False)
    (root / "left_over.txt").write_text("")
    monkeypatch.setattr(glyphs, "VERSION", glyphs.VERSION + 1)
    glyphs.write_glyphs(root, progress=False)
    assert json.loads((root / "glyphs.json").read_text())["version"] == glyphs.VERSION
    assert not (root / "left_over.txt").exists()


def test_interrupted_leaves_nothing(tmp_path, few, monkeypatch):
    calls = []

    def stop(*args):
        calls.append(args)
        if len(calls) > 40:
            raise KeyboardInterrupt
        return Image.new("RGB", (36, 36))

    monkeypatch.setattr(glyphs, "render", stop)
    with pytest.raises(KeyboardInterrupt):
        glyphs.write_glyphs(tmp_path / "glyphs", progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("marker", [None, "no json", "[]", '{"data": "else"}'])
def test_foreign_folder_is_left_alone(tmp_path, blank, marker):
    (tmp_path / "thesis.txt").write_text("precious")
    if marker is not None:
        (tmp_path / "glyphs.json").write_text(marker)
    with pytest.raises(UserError, match="does not hold Glyphs.*another folder"):
        glyphs.write_glyphs(tmp_path, progress=False)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_empty_folder_is_filled(tmp_path, blank):
    assert (glyphs.write_glyphs(tmp_path, progress=False) / "image_list" / "hand.txt").is_file()


def test_domains_differ_as_said():
    pictures = {style: np.stack([np.asarray(glyph_render.render("R", style, (0, i)), float) for i in range(12)])
                for style in glyph_render.STYLES}  # fmt: skip
    paper = {style: np.median(x.reshape(12, -1, 3), axis=1) for style, x in pictures.items()}
    assert (paper["print"] > 200).all() and (paper["hand"] > 200).all()
    assert (paper["scene"].mean(1) < 200).any()
    spread = {style: np.ptp(x, axis=-1).mean() for style, x in pictures.items()}  # distance from grey
    assert spread["print"] < spread["hand"] < spread["scene"]


def test_skeleton_is_thin_and_connected():
    points, edges = glyph_render.skeleton("L", "DejaVuSans")
    assert points.min() >= 0 and points.max() <= 1.1 and len(edges) >= len(points) - 1
    reached, before = {0}, 0
    while len(reached) != before:
        before = len(reached)
        reached |= {int(b) for pair in edges for a, b in (pair, pair[::-1]) if int(a) in reached}
    assert len(reached) == len(points)
    ink = np.asarray(glyph_render.glyph_mask("L", "DejaVuSans").reduce(2)) > 110
    assert len(points) < ink.sum() / 3


def test_missing_fonts_name_the_remedy(monkeypatch):
    monkeypatch.setattr(glyph_render, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        glyph_render.font_folder()


def test_rendering_does_not_import_matplotlib():
    code = ("import sys; from tllib_ext.vision.datasets.glyph_render import render; render('A', 'print', (0,));"
            "sys.exit('matplotlib' in sys.modules)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_shipped_weights_know_none_of_the_classes():
    assert WEIGHTS.stat().st_size < 1_000_000
    with safe_open(WEIGHTS, "pt") as file:
        learnt = file.metadata()["classes"]
    assert len(set(learnt)) == len(learnt) == 59
    assert not {c.lower() for c in glyphs.CHARACTERS if c in "CFIJKLMOPSTUVWXYZ"} & set(learnt)  # same shape, smaller
    assert not set(glyphs.CHARACTERS) & set(learnt)


def test_shipped_weights_are_those_of_the_script():
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    try:
        import pretrain_small_cnn
    finally:
        sys.path.pop(0)
    with safe_open(WEIGHTS, "pt") as file:
        assert file.metadata()["classes"] == pretrain_small_cnn.OTHERS
        assert float(file.metadata()["held_out"]) > 0.9


def test_every_face_has_every_glyph():
    with safe_open(WEIGHTS, "pt") as file:
        chars = file.metadata()["classes"] + glyphs.CHARACTERS
    for char in chars:
        for face in {*glyph_render._faces(char), *glyph_render.PEN_FACES}:
            missing = glyph_render.glyph_mask("\U0010fffe", face)
            assert glyph_render.glyph_mask(char, face).tobytes() != missing.tobytes(), (char, face)


def test_small_cnn():
    x = torch.randn(5, 3, glyphs.CROP, glyphs.CROP)
    net = build_backbone("small_cnn").eval()
    assert net(x).shape == (5, net.out_features) and net(x).min() >= 0
    assert net(torch.randn(2, 3, 24, 24)).shape == (2, net.out_features)
    again, random = (build_backbone("small_cnn", weights).eval() for weights in ("default", None))
    assert torch.equal(net(x), again(x)) and not torch.allclose(net(x), random(x))
    assert 100_000 < sum(p.numel() for p in net.parameters()) < 200_000


def test_small_cnn_weights_from_a_file(tmp_path):
    net = SmallCNN()
    save_file(net.state_dict(), tmp_path / "own.safetensors")
    loaded = build_backbone("small_cnn", tmp_path / "own.safetensors")
    assert torch.equal(loaded.feature[1].weight, net.feature[1].weight)
    with pytest.raises(UserError, match="no weights file"):
        build_backbone("small_cnn", tmp_path / "absent.safetensors")
    (tmp_path / "damaged.safetensors").write_bytes(b"12345678901234567890")
    with pytest.raises(UserError, match="cannot read the weights"):
        build_backbone("small_cnn", tmp_path / "damaged.safetensors")
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="do not fit the backbone: the file lacks"):
        build_backbone("small_cnn", tmp_path / "other.safetensors")
