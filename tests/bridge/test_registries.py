"""``register()``: our names in tllib's registries, for any script, without the launcher."""

import sys

import pytest
import standin
import torch
from test_compat import python

from tllib_ext.errors import UserError
from tllib_ext.split import PRESETS
from tllib_ext.tllib import noisy, register, universal
from tllib_ext.tllib.models import backbone
from tllib_ext.vision.datasets import glyphs

checkout, office31, tllib = standin.checkout, standin.office31, standin.tllib

#: an ordinary script: two lines of ours
SCRIPT = """
import sys
import tllib_ext.tllib
assert not [name for name in sys.modules if name.split(".")[0] in ("tllib", "torch")], "importing it does nothing"
tllib_ext.tllib.register(rate=0.3)
import tllib.vision.datasets as datasets, tllib.vision.models as models
import tllib.vision.datasets.openset as openset

source = datasets.__dict__["NoisyUniversalOffice31Source"](root=sys.argv[1], task="A")
target = datasets.__dict__["UniversalOffice31Target"](root=sys.argv[1], task="D")
net = models.__dict__["small_cnn"](pretrained=False)
print(source.num_classes, len(source), target.num_classes, len(target), net.out_features)
dataset = openset.__dict__["NoisyUniversalOffice31"]
print(len(openset.default_open_set(dataset, source=True)(root=sys.argv[1], task="A").classes))
"""


def test_an_ordinary_script(checkout, office31, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python(tmp_path / "script.py", office31, path=[checkout])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["20 60 21 63 128", "21"]


def test_registering_twice_changes_nothing_but_the_noise(tllib):
    register()
    from tllib.vision import datasets, models
    from tllib.vision.datasets import openset, partial

    modules = (datasets, openset, partial, models)
    before = [dict(vars(module)) for module in modules]
    register()
    for module, names in zip(modules, before):
        assert vars(module).keys() == names.keys()
        assert all(vars(module)[name] is value for name, value in names.items() if isinstance(value, type))
    assert openset.default_open_set.__wrapped__ is before[1]["default_open_set"].__wrapped__, "wrapped once"
    register(noise="symmetric", rate=0.45, seed=2)
    assert datasets.NoisyOffice31 is noisy(datasets.Office31, "symmetric", 0.45, seed=2)
    assert datasets.UniversalOffice31Source is before[0]["UniversalOffice31Source"]
    assert models.resnet18 is before[3]["resnet18"] and datasets.Office31 is before[0]["Office31"], "tllib's names are tllib's"


def test_names_are_where_scripts_look(tllib):
    register()
    from tllib.vision import datasets, models
    from tllib.vision.datasets import openset, partial

    names = {"Glyphs", "folder", "NoisyOffice31", "UniversalOffice31Source", "UniversalOffice31Target", "NoisyGlyphs"}
    assert names <= vars(datasets).keys()
    assert {"Glyphs", "NoisyOffice31", "UniversalOffice31", "NoisyUniversalOffice31", "UniversalGlyphs"} <= vars(openset).keys()
    assert {"Glyphs", "NoisyOffice31"} <= vars(partial).keys()
    assert {"small_cnn", "mobilenet_v2"} <= vars(models).keys()
    for module in (datasets, openset, partial):
        made = [value for value in vars(module).values() if isinstance(value, type) and value.__name__.startswith("Noisy")]
        assert made and all(issubclass(cls, datasets.ImageList) for cls in made)


def test_open_set_and_partial_factories_know_ours(tllib, office31, tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "PER_CLASS", 1)
    register("pair", 0.5)
    from tllib.vision.datasets import openset, partial

    def made(dataset, source, root=office31, task="A"):
        return openset.default_open_set(dataset, source=source)(root=str(root), task=task)

    split = PRESETS["Office31"]
    source, target = made(openset.NoisyUniversalOffice31, True), made(openset.NoisyUniversalOffice31, False)
    assert source.classes == target.classes == [*split.source_classes, "unknown"]
    assert source.is_flipped.any() and not target.is_flipped.any() and max(source.targets) == 19
    assert target.samples == universal(openset.Office31, "target")(root=str(office31), task="A").samples
    # with all classes: tllib's own open-set classes, and noise on the source
    source, target = made(openset.NoisyOffice31, True), made(openset.NoisyOffice31, False)
    assert source.classes == target.classes == [*openset.Office31.CLASSES[:20], "unknown"] and source.is_flipped.any()
    assert made(openset.Office31, False).samples == target.samples, "tllib's own answer is unchanged"
    root = tmp_path / "glyphs"
    source, target = (made(openset.Glyphs, flag, root, "print") for flag in (True, False))
    assert len(source.classes) == len(target.classes) == 11 and len(source) == 10 and len(target) == 21
    # partial: a noisy source, a target with true labels
    assert partial.default_partial(partial.NoisyOffice31).__mro__[1] is partial.Office31
    target = partial.default_partial(partial.Glyphs)(root=str(root), task="hand")
    assert len(target) == len(target.partial_classes_idx) == 10
    with pytest.raises(NotImplementedError):
        openset.default_open_set(dict, source=True)


def test_without_the_optional_data_sets(tllib, monkeypatch):
    """tllib's registry may lack a benchmark; ours then lacks its versions."""
    register()
    from tllib.vision import datasets

    assert not hasattr(datasets, "OfficeHome") and not hasattr(datasets, "NoisyOfficeHome")


def test_without_tllib(monkeypatch):
    from test_compat import hide

    standin.forget_tllib()
    hide(monkeypatch, "tllib")
    with pytest.raises(UserError, match="tllib cannot be used.*pip install"):
        register()


def test_small_cnn_as_a_backbone_of_tllib():
    net = backbone("small_cnn", pretrained=False, num_classes=5).eval()
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    # pooled and flattened by tllib's classifier it is the feature of the network itself
    pooled = torch.nn.functional.adaptive_avg_pool2d(net(x), 1).flatten(1)
    assert torch.equal(pooled, net.net(x))
    assert net.copy_head().weight.shape == (5, net.out_features)


def test_the_modules_are_not_left_behind():
    """The other tests of this process see no stand-in."""
    assert not [name for name in sys.modules if name.split(".")[0] == "tllib" and "checkout" in str(sys.modules[name])]
