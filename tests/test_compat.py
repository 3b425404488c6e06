"""tllib, timm and torchvision: found, supplied with what they lack, or missing with a remedy."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tllib_ext import compat
from tllib_ext.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
REAL = os.environ.get("TLLIB_EXT_REAL_TLLIB")

#: a tllib of a few lines that needs every name tllib 0.4 needs, and a package nobody has.
FAKE_TLLIB = {
    "tllib/__init__.py": "from . import modules\nfrom . import ranking\n__version__ = '0.4'\n",
    "tllib/modules/__init__.py": "from .grl import *\n",
    "tllib/modules/grl.py": "import numpy as np\ndef coefficient(x):\n    return np.float(x) + np.int(x)\n",
    "tllib/ranking/__init__.py": "from .logme import *\n",
    "tllib/ranking/logme.py": "from no_such_compiler import njit\n",
    "tllib/vision/__init__.py": "",
    "tllib/vision/models/__init__.py": "from .resnet import *\n",
    "tllib/vision/models/resnet.py": """
        from torchvision.models.resnet import model_urls
        resnet18 = "tllib's own"
    """,
    "tllib/vision/models/segmentation.py": "from torchvision.models.utils import load_state_dict_from_url\n",
    "tllib/vision/datasets/__init__.py": "from .imagelist import ImageList\n",
    "tllib/vision/datasets/imagelist.py": """
        from torch.utils.data.dataset import Dataset, T_co
        class ImageList(Dataset[T_co]):
            def __init__(self, root, classes, data_list_file, transform=None, target_transform=None):
                lines = [line.rsplit(None, 1) for line in open(data_list_file)]
                self.samples, self.classes = [(f"{root}/{path}", int(label)) for path, label in lines], classes
            def __len__(self):
                return len(self.samples)
    """,
}


def write_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


def python(*arguments, path=(), cwd=ROOT):
    """Run python from the project's root, or another folder, with ``path`` before everything else."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, [*path, ROOT])), OMP_NUM_THREADS="1")
    return subprocess.run([sys.executable, *map(str, arguments)], env=env, cwd=cwd, capture_output=True, text=True)


def hide(monkeypatch, package):
    """As if ``package`` were not installed."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else find_spec(name, *a))
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_importing_us_imports_nothing_heavy():
    done = python("-c", "import sys, tllib_ext, tllib_ext.compat; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not {"torch", "torchvision", "matplotlib", "tllib", "timm"} & set(done.stdout.split())


def test_missing_says_why_and_what_to_type():
    cause = ModuleNotFoundError("No module named 'cv2'", name="cv2")
    error = compat.Missing("tllib.vision.models.keypoint_detection", cause)
    assert isinstance(error, UserError) and error.cause is cause
    assert str(error).startswith("tllib.vision.models.keypoint_detection cannot be used: No module named 'cv2'")
    assert error.remedy == "pip install opencv-python" and error.remedy in str(error)
    broken = compat.Missing("timm", AttributeError("no attribute 'x'\nand much more"))
    assert broken.why == "no attribute 'x'" and broken.remedy == "pip install --force-reinstall timm"
    assert compat.Missing("timm", RuntimeError()).why == "RuntimeError"


def test_without_tllib(monkeypatch):
    import numpy

    hide(monkeypatch, "tllib")
    before = set(vars(numpy))
    with pytest.raises(compat.Missing, match="pip install git") as caught:
        compat.tllib("vision.datasets")
    assert isinstance(caught.value.cause, ModuleNotFoundError) and "\n" not in str(caught.value)
    assert set(vars(numpy)) == before, "nothing is supplied for a tllib that is not there"
    (row,) = compat._walk("tllib", compat.tllib)
    assert (row.name, row.usable) == ("tllib", False) and row.cause is not None and "checkout" in row.remedy


def test_a_folder_called_tllib_is_not_tllib(tmp_path, monkeypatch):
    (tmp_path / "tllib").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tllib", raising=False)
    if importlib.util.find_spec("tllib").origin is not None:
        pytest.skip("a real tllib is installed")
    with pytest.raises(compat.Missing, match="No module named 'tllib'"):
        compat.tllib()


def test_a_part_nobody_has():
    with pytest.raises(compat.Missing) as caught:
        compat._import("no_such_package.part")
    assert caught.value.remedy == "pip install no_such_package"
    assert caught.value.__cause__ is caught.value.cause


def test_a_torchvision_broken_in_another_way_keeps_its_cause(tmp_path):
    write_tree(tmp_path, {"torchvision/__init__.py": "raise OSError('libjpeg.so.8: cannot open')\n"})
    code = """
        from tllib_ext import compat
        try:
            compat.torchvision()
        except compat.Missing as missing:
            print(repr(missing.cause), missing)
    """
    done = python("-c", textwrap.dedent(code), path=[tmp_path])
    assert done.stdout.startswith("OSError('libjpeg.so.8: cannot open')"), done.stderr
    assert "pip install --force-reinstall torchvision" in done.stdout


def test_torchvision_and_a_tllib_that_needs_names(tmp_path):
    write_tree(tmp_path, FAKE_TLLIB)
    code = """
        import json, numpy
        before = dict(vars(numpy))
        from tllib_ext import compat
        net = compat.torchvision().models.resnet18(weights=None)
        urls = compat.tllib("vision.models").model_urls
        import tllib.vision.datasets as datasets, tllib.modules
        compat.tllib("vision.models.segmentation")
        try:
            compat.tllib("ranking")
        except compat.Missing as missing:
            ranking = str(missing)
        print(json.dumps({
            "resnet18": net.fc.in_features,
            "urls": sorted(urls), "https": all(url.startswith("https://") for url in urls.values()),
            "float": tllib.modules.coefficient(2.7), "ranking": ranking, "version": compat.tllib().__version__,
            "unchanged": all(vars(numpy)[name] is value for name, value in before.items()),
            "parts": {part.name: [part.usable, part.why, part.remedy] for part in compat.probe()},
        }))
        compat.main()
    """
    done = python("-c", textwrap.dedent(code), path=[tmp_path])
    assert done.returncode == 0, done.stderr
    record, table = done.stdout.split("\n", 1)
    seen = json.loads(record)
    assert seen["resnet18"] == 512
    assert seen["urls"] == sorted(compat.RESNETS) and seen["https"]
    assert seen["float"] == 4.7 and seen["version"] == "0.4" and seen["unchanged"]
    # the missing package takes down the one part that needs it, and is named there
    assert "No module named 'no_such_compiler'" in seen["ranking"] and "pip install no_such_compiler" in seen["ranking"]
    parts = seen["parts"]
    assert list(parts)[:3] == ["torchvision", "timm", "tllib"] and parts["torchvision"][0]
    assert parts["timm"][0] or parts["timm"][2] == "pip install timm"
    assert parts["tllib.ranking"][0] is False and parts["tllib.ranking"][2] == "pip install no_such_compiler"
    assert all(parts[f"tllib.{name}"][0] for name in ("modules", "vision", "vision.datasets", "vision.models"))
    assert "type: pip install no_such_compiler" in table and max(map(len, table.splitlines())) <= 100
    lines = table.splitlines()
    assert "usable" in lines[[line.split()[0] for line in lines].index("tllib.modules")]
    assert [line.split()[-2:] for line in lines if line.startswith("tllib.ranking ")] == [["not", "usable"]]
    # said once, though asked for many times
    assert done.stderr.count("supplied for tllib") == 1 and done.stderr.count("part by part") == 1
    for name in ("T_co", "model_urls", "load_state_dict_from_url", "numpy.float"):
        assert name in done.stderr


@pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
def test_the_real_tllib_imports():
    names = """alignment.dann alignment.cdan alignment.mcd alignment.mdd alignment.dan alignment.jan alignment.osbp
        normalization.afn self_training.mcc reweight.pada reweight.iwan regularization.delta modules.grl modules.gl
        translation.cyclegan utils.data vision.datasets vision.datasets.openset vision.datasets.partial vision.models
        vision.models.segmentation vision.transforms""".split()
    code = f"""
        from tllib_ext import compat
        for name in {names!r}:
            compat.tllib(name)
        import torch
        from tllib.modules.grl import WarmStartGradientReverseLayer
        WarmStartGradientReverseLayer(auto_step=True)(torch.ones(1))
        from tllib.vision import datasets, models
        print(models.resnet18().out_features, datasets.Office31.CLASSES[0])
    """
    done = python("-c", textwrap.dedent(code), path=[REAL])
    assert done.stdout.strip() == "512 back_pack", done.stderr


def test_scripts_that_import_timm_run_without_it():
    """All of tllib's scripts import timm, also for a ResNet: what they do not use need not be installed."""
    code = textwrap.dedent("""
        import sys
        class Hide:  # as if timm were not installed
            def find_spec(name, *more):
                if name.partition(".")[0] == "timm":
                    raise ModuleNotFoundError("No module named 'timm'", name="timm")
        sys.meta_path.insert(0, Hide)
        from tllib_ext import compat
        compat.timm_or_stand_in()
        import timm
        from timm.data.auto_augment import auto_augment_transform, rand_augment_transform
        print(["resnet50"] + timm.list_models())
        try:
            timm.create_model("vit_tiny_patch16_224", pretrained=False)
        except compat.Missing as error:
            print(error)
    """)
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert out.splitlines()[0] == "['resnet50']"
    assert out.splitlines()[1].startswith("timm cannot be used") and "pip install timm" in out
