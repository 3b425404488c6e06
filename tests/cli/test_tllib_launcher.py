"""tllib's own scripts, run unmodified, with our data set and backbone in its registries."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_compat import FAKE_TLLIB, REAL, hide, python, write_tree

from tllib_ext.cli import tllib as launcher
from tllib_ext.errors import UserError
from tllib_ext.vision.datasets import glyphs

OFFICE31 = Path(__file__).resolve().parents[3] / "shared" / "data" / "office31"
EXAMPLES = Path(REAL or "") / "examples" / "domain_adaptation" / "image_classification"
needs_tllib = pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")

#: as tllib's scripts: a module beside it, names looked up in tllib's packages, a logger that closes stdout.
SCRIPT = {
    "examples/family/beside.py": "import tllib.vision.datasets as datasets\nimport tllib.vision.models as models\n",
    "examples/family/good.py": """
        import multiprocessing, sys
        import beside, torch
        class Logger:
            def __init__(self): self.terminal = sys.stdout
            def write(self, text): self.terminal.write(text)
            def flush(self): self.terminal.flush()
        if __name__ == "__main__":
            sys.stdout = sys.stderr = Logger()
            net = beside.models.__dict__["small_cnn"](pretrained=False)
            print(sys.argv, issubclass(beside.datasets.__dict__["Glyphs"], beside.datasets.ImageList))
            print(tuple(net(torch.zeros(2, 3, 64, 64)).shape), net.out_features, net.copy_head().in_features)
            print(multiprocessing.get_start_method(), "mobilenet_v2" in vars(beside.models), beside.models.resnet18)
            sys.stdout.terminal.close()
    """,
    "examples/family/weights.py": "import torch.hub\ntorch.hub.load_state_dict_from_url('https://example.org/w-1234.pth')\n",
    "examples/family/data.py": """
        from torchvision.datasets.utils import download_and_extract_archive
        try:
            download_and_extract_archive("https://example.org/office.zip", "data")
        except Exception:
            exit(0)
    """,
    "examples/family/needy.py": "import no_such_package\n",
    "examples/family/bad.py": "import beside\ndef inner():\n    return 1 / 0\ninner()\n",
}


class TinyImageList:
    """What tllib's ``ImageList`` does with its arguments."""

    def __init__(self, root, classes, data_list_file, transform=None):
        self.root, self.classes = root, classes
        self.samples = self.parse_data_file(data_list_file)

    def parse_data_file(self, file_name):
        lines = [line.rsplit(None, 1) for line in Path(file_name).read_text().splitlines()]
        return [(os.path.join(self.root, path), int(label)) for path, label in lines]


class TinyGlyphs(launcher.GlyphsList, TinyImageList):
    pass


class TinyFolder(launcher.FolderList, TinyImageList):
    pass


def test_a_script_that_is_not_there(capsys):
    with pytest.raises(SystemExit) as caught:
        launcher.main(["no/such/dann.py", "data"])
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.startswith("error: no script no/such/dann.py") and error.count("\n") == 1


def test_without_tllib(tmp_path, monkeypatch, capsys):
    hide(monkeypatch, "tllib")
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "dann.py"
    script.write_text("raise AssertionError('must not run')")
    with pytest.raises(SystemExit) as caught:
        launcher.main([str(script)])
    error = capsys.readouterr().err
    assert caught.value.code == 2 and error.count("\n") == 1
    assert "tllib cannot be used" in error and "pip install git+https" in error


@pytest.mark.parametrize("argv", [[], ["--help"]])
def test_help(argv, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tllib"])
    launcher.main(argv)
    assert "python -m tllib_ext.tllib [--download] SCRIPT" in capsys.readouterr().out


def test_a_script_runs_as_by_itself(tmp_path):
    """tllib is found in the checkout around the script, and the logger that closes stdout does not spoil the exit."""
    write_tree(tmp_path, {**FAKE_TLLIB, **SCRIPT})
    script = tmp_path / "examples/family/good.py"
    done = python("-m", "tllib_ext.tllib", script, "data", "-d", "Glyphs")
    assert done.returncode == 0, done.stderr
    argv, shapes, rest = done.stdout.splitlines()
    assert argv == f"[{str(script)!r}, 'data', '-d', 'Glyphs'] True"
    assert shapes == "(2, 128, 1, 1) 128 128"
    assert rest == "fork True tllib's own" or sys.platform == "win32"


def test_a_scripts_own_error_is_shown(tmp_path):
    write_tree(tmp_path, {**FAKE_TLLIB, **SCRIPT})
    done = python("-m", "tllib_ext.tllib", tmp_path / "examples/family/bad.py")
    assert done.returncode == 1 and "in inner" in done.stderr and "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    "name, remedy", [("weights", "--scratch"), ("data", "--download"), ("needy", "pip install no_such_package")]
)
def test_what_a_script_lacks_is_one_line(name, remedy, tmp_path, monkeypatch):
    """tllib's scripts fetch weights and data unasked, and import packages that may be absent."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    write_tree(tmp_path, {**FAKE_TLLIB, **SCRIPT})
    done = python("-m", "tllib_ext.tllib", tmp_path / f"examples/family/{name}.py")
    assert done.returncode == 2 and remedy in done.stderr and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1


def test_glyphs_are_drawn_where_tllib_would_download(tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "PER_CLASS", 1)
    data = TinyGlyphs(root=str(tmp_path / "glyphs"), task="H")
    assert len(data.samples) == len(glyphs.CLASSES) and data.classes == list(glyphs.CLASSES)
    assert all(Path(path).is_file() for path, _ in data.samples)
    assert all("/hand/" in Path(path).as_posix() for path, _ in data.samples)
    assert TinyGlyphs(root=str(tmp_path / "glyphs"), task="scene").samples[0][0].endswith(".png")
    with pytest.raises(UserError, match="unknown domain 'X'"):
        TinyGlyphs(root=str(tmp_path / "glyphs"), task="X")
    with pytest.raises(FileNotFoundError):
        TinyGlyphs(root=str(tmp_path / "elsewhere"), task="H", download=False)


def test_folders_of_any_names(tmp_path):
    for path in ("photos/cat/1.png", "photos/owl/2.png", "drawings/bee/3.png", "drawings/cat/4.png", "loose/5.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / path)
    (tmp_path / "logs").mkdir()
    photos, drawings = (TinyFolder(root=str(tmp_path), task=task) for task in ("photos", "draw"))
    assert photos.classes == drawings.classes == ["bee", "cat", "owl"]
    assert [(Path(path).name, label) for path, label in drawings.samples] == [("3.png", 0), ("4.png", 1)]
    with pytest.raises(UserError, match="loose has no class folders"):
        TinyFolder(root=str(tmp_path), task="loose")
    with pytest.raises(UserError, match="unknown domain 'phothos': did you mean 'photos'"):
        TinyFolder(root=str(tmp_path), task="phothos")
    with pytest.raises(UserError, match="no data folder"):
        TinyFolder(root=str(tmp_path / "none"), task="photos")


def test_small_cnn_as_a_backbone_of_tllib():
    net = launcher.backbone("small_cnn", pretrained=False, num_classes=5).eval()
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    # pooled and flattened by tllib's classifier it is the feature of the network itself
    pooled = torch.nn.functional.adaptive_avg_pool2d(net(x), 1).flatten(1)
    assert torch.equal(pooled, net.net(x))
    assert net.copy_head().weight.shape == (5, net.out_features)


def train_two_steps(script, tmp_path, *arguments):
    done = python(
        "-m",
        "tllib_ext.tllib",
        EXAMPLES / script,
        *arguments,
        "--scratch",
        "--epochs",
        1,
        "-i",
        2,
        "-b",
        8,
        "--train-resizing",
        "res.",
        "--val-resizing",
        "res.",
        "--seed",
        0,
        "--log",
        tmp_path / "log",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_acc1 = " in done.stdout


@needs_tllib
@pytest.mark.slow
@pytest.mark.parametrize("script", ["dann.py", "mcd.py", "cdan.py", "mdd.py", "mcc.py", "afn.py"])
def test_scripts_of_the_real_tllib_on_office31(script, tmp_path):
    if not OFFICE31.is_dir():
        pytest.skip(f"Office-31 is not at {OFFICE31}")
    flags = "-d Office31 -s A -t D -a resnet18 --resize-size 64 -j 0".split()
    train_two_steps(script, tmp_path, OFFICE31, *flags)


@needs_tllib
@pytest.mark.slow
@pytest.mark.parametrize("flags", ["-d Glyphs -s P -t H -a small_cnn -j 1", "-d folder -s pri -t hand -a mobilenet_v2"])
def test_a_script_of_the_real_tllib_on_our_data(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "PER_CLASS", 1)
    for domain in ("print", "hand"):  # the folders of Glyphs, without images/ between domain and class
        shutil.copytree(glyphs.write_glyphs(tmp_path / "drawn") / domain / "images", tmp_path / "data" / domain)
    root = tmp_path / ("glyphs" if "Glyphs" in flags else "data")
    train_two_steps("dann.py", tmp_path, root, *flags.split(), "--resize-size", 32, "--no-hflip")
