"""tllib's own scripts, run unmodified: with our names in its registries, on noisy labels and universal label sets."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import standin
import torch
from conftest import SHARED
from PIL import Image
from test_compat import REAL, hide, python, write_tree

from tllib_ext.cli import tllib as command
from tllib_ext.errors import UserError
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.tllib import __main__ as launcher
from tllib_ext.tllib.datasets import FolderList, GlyphsList
from tllib_ext.tllib.last_checkpoint import Outputs, predictions_of, restore
from tllib_ext.vision.datasets import glyphs

checkout, office31, tllib = standin.checkout, standin.office31, standin.tllib
OFFICE31, WEIGHTS = SHARED / "data" / "office31", SHARED / "weights" / "mobilenet_v2-b0353104.pth"
EXAMPLES = Path(REAL or "") / "examples" / "domain_adaptation"
needs_tllib = pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
needs_office31 = pytest.mark.skipif(not OFFICE31.is_dir(), reason=f"Office-31 is not at {OFFICE31}")

#: scripts that do as tllib's: a module beside it, names looked up in tllib's packages, a logger that closes stdout.
SCRIPTS = {
    "good.py": """
        import multiprocessing, sys
        import torch, utils
        from tllib.utils.logger import CompleteLogger
        if __name__ == "__main__":
            logger = CompleteLogger(sys.argv[1])
            net = utils.models.__dict__["small_cnn"](pretrained=False)
            print(sys.argv, issubclass(utils.datasets.__dict__["Glyphs"], utils.datasets.ImageList))
            print(tuple(net(torch.zeros(2, 3, 64, 64)).shape), net.out_features, net.copy_head().in_features)
            print(multiprocessing.get_start_method(), "mobilenet_v2" in vars(utils.models), utils.models.resnet18.__module__)
            logger.close()
    """,
    "weights.py": "import torch.hub\ntorch.hub.load_state_dict_from_url('https://example.org/w-1234.pth')\n",
    "data.py": """
        from torchvision.datasets.utils import download_and_extract_archive
        try:
            download_and_extract_archive("https://example.org/office.zip", "data")
        except Exception:
            exit(0)
    """,
    "needy.py": "import no_such_package\n",
    "bad.py": "import utils\ndef inner():\n    return 1 / 0\ninner()\n",
    "lost.py": "open('no_such_list.txt')\n",
    "idle.py": "import argparse\nargparse.ArgumentParser().parse_args([])\n",
}


@pytest.fixture(scope="session")
def scripts(checkout):
    """The folder of the stand-in's image classification scripts, with those above."""
    folder = checkout / "examples" / "domain_adaptation"
    write_tree(folder / "image_classification", SCRIPTS)
    return folder


class TinyImageList:
    """What tllib's ``ImageList`` does with its arguments."""

    def __init__(self, root, classes, data_list_file, transform=None):
        self.root, self.classes = root, classes
        self.samples = self.parse_data_file(data_list_file)

    def parse_data_file(self, file_name):
        lines = [line.rsplit(None, 1) for line in Path(file_name).read_text().splitlines()]
        return [(os.path.join(self.root, path), int(label)) for path, label in lines]


class TinyGlyphs(GlyphsList, TinyImageList):
    pass


class TinyFolder(FolderList, TinyImageList):
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
@pytest.mark.parametrize("main", [launcher.main, command.main])
def test_help(main, argv, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tllib"])
    assert main(argv) == 0
    assert "python -m tllib_ext.tllib [flags] SCRIPT" in capsys.readouterr().out


def test_a_script_runs_as_by_itself(scripts, tmp_path):
    """tllib is found in the checkout around the script, and the logger that closes stdout does not spoil the exit."""
    script = scripts / "image_classification" / "good.py"
    done = python("-m", "tllib_ext.tllib", script, tmp_path, "-d", "Glyphs")
    assert done.returncode == 0, done.stderr
    argv, shapes, rest = done.stdout.splitlines()
    assert argv == f"[{str(script)!r}, {str(tmp_path)!r}, '-d', 'Glyphs'] True"
    assert shapes == "(2, 128, 1, 1) 128 128"
    assert rest == "fork True tllib.vision.models" or sys.platform == "win32"


def test_a_scripts_own_error_is_shown(scripts):
    done = python("-m", "tllib_ext.tllib", scripts / "image_classification" / "bad.py")
    assert done.returncode == 1 and "in inner" in done.stderr and "ZeroDivisionError" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, remedy", [("weights", "--scratch"), ("data", "--no-download"), ("needy", "pip install no_such_package")]
)
def test_what_a_script_lacks_is_one_line(name, remedy, scripts, tmp_path, monkeypatch):
    """tllib's scripts fetch weights and data unasked, and import packages that may be absent."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    done = python("-m", "tllib_ext.tllib", scripts / "image_classification" / f"{name}.py")
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


NOISE = ["--noise", "pair", "--rate", "0.3", "--universal"]


def run_on_noise(scripts, name, office31, log, *words, flags=NOISE):
    """A script of the stand-in under the launcher: what it printed, and the records of the evaluation."""
    arguments = [office31, "-d", "Office31", "-s", "A", "-t", "D", "--seed", 0, "--log", log, "-b", 16, *words]
    done = python("-m", "tllib_ext.tllib", *flags, scripts / f"{name}.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((log / "open_set.json").read_text())


def test_a_closed_set_script_on_the_noisy_universal_setting(scripts, office31, tmp_path):
    """20 outputs, 20 x 3 source images, 21 x 3 target images of which tllib's validation sees the label of the known ones."""
    printed, records = run_on_noise(scripts, "image_classification/erm", office31, tmp_path, "--best")
    assert "target labels in training: [-100]" in printed
    assert "classes 20 validated on 30 labelled images of 63" in printed and "test_acc1 = 0.0" in printed
    assert [record["row"] for record in records] == ["erm (entropy)", "erm (target-model)"]
    for record in records:
        assert record["task"] == "A2D" and record["num_images"] == 63 and record["scenario"] == "universal"
        assert (record["noise"], record["rate"], record["noise_seed"], record["split"]) == ("pair", 0.3, 0, "10/10/11")
        row = f"| {record['row']:<18} | {'*' * (record['os'] == max(r['os'] for r in records))}{100 * record['os']:.1f} (1) |"
        assert " ".join(row.split()) in " ".join(printed.split())
    assert "pair 0.3" in printed.splitlines()
    assert "last checkpoint, after 1 x 2 iterations, batch 16 per domain; resnet18; label sets 10/10/11; seed 0" in printed
    # by hand, from latest.pth and the images
    state = torch.load(tmp_path / "checkpoints" / "latest.pth")
    assert state["head.weight"].shape == (20, 8)
    logits, labels = [], []
    split = PRESETS["Office31"]
    for line in (office31 / "image_list" / "dslr.txt").read_text().splitlines():
        path, label = line.rsplit(None, 1)
        label = split.target_index(standin.CLASSES[int(label)])
        if label is None:
            continue
        x = torch.from_numpy(np.array(Image.open(office31 / path))).permute(2, 0, 1)[None] / 255.0
        f = torch.conv2d(x, state["backbone.0.weight"], state["backbone.0.bias"], stride=4).relu().mean((2, 3))
        logits.append(f @ state["head.weight"].T + state["head.bias"])
        labels.append(label)
    probs, labels = torch.cat(logits).softmax(1), torch.tensor(labels)
    unknown = torch.special.entr(probs).sum(1) > 0.5 * np.log(20)
    predicted = torch.where(unknown, 20, probs.argmax(1))
    recalls = [float((predicted[labels == k] == k).float().mean()) for k in (*range(10), 20)]
    assert abs(np.mean(recalls) - records[0]["os"]) < 1e-6


@pytest.mark.slow
def test_the_last_checkpoint_counts_even_where_the_script_saved_no_best(scripts, office31, tmp_path):
    printed, records = run_on_noise(scripts, "image_classification/erm", office31, tmp_path)
    assert "tllib saved no best checkpoint" in printed and "test_acc1" not in printed
    _, again = run_on_noise(scripts, "image_classification/erm", office31, tmp_path / "best", "--best")
    for first, second in zip(records, again):  # the best one has weights of zero here
        assert {**first, "checkpoint": ""} == {**second, "checkpoint": ""}


@pytest.mark.slow
def test_two_heads(scripts, office31, tmp_path):
    _, records = run_on_noise(scripts, "image_classification/mcd", office31, tmp_path, "--best")
    assert [record["row"] for record in records] == ["mcd (entropy)", "mcd (target-model)"]


@pytest.mark.slow
def test_several_domains(scripts, office31, tmp_path):
    """All sources have noise; all targets are evaluated, and none gives its labels to training."""
    words = ["-s", "A", "W", "-t", "D"]
    printed, records = run_on_noise(scripts, "image_classification/erm", office31, tmp_path, *words, "--best")
    assert {record["task"] for record in records} == {"A+W2D"} and records[0]["num_images"] == 63
    words = ["-s", "A", "-t", "D", "W"]
    printed, records = run_on_noise(scripts, "image_classification/erm", office31, tmp_path / "two", *words, "--best")
    assert {record["task"] for record in records} == {"A2D+W"} and records[0]["num_images"] == 126
    assert "target labels in training: [-100]" in printed and "labelled images of 126" in printed


@pytest.mark.slow
def test_an_open_set_script_with_a_class_for_unknown(scripts, office31, tmp_path):
    printed, records = run_on_noise(scripts, "openset_domain_adaptation/osbp", office31, tmp_path)
    assert "classes 21 unknown 33" in printed and "target labels in training: [-100]" in printed
    assert [record["row"] for record in records] == ["osbp (entropy)", "osbp (target-model)", "osbp (own class)"]
    assert len({record["auroc"] for record in records}) == 3


@pytest.mark.slow
def test_a_partial_script(scripts, office31, tmp_path):
    printed, _ = run_on_noise(scripts, "partial_domain_adaptation/erm", office31, tmp_path)
    assert "classes 20 target holds 10 of them" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, flags, scenario, images",
    [
        ("image_classification", ["--noise", "symmetric"], "closed", 93),
        ("openset_domain_adaptation", ["--noise", "symmetric"], "open", 93),
        ("partial_domain_adaptation", ["--noise", "symmetric"], "closed", 30),  # only 10 of 31 classes have images
        ("image_classification", ["--split", "Office31:open"], "open", 63),
    ],
)
def test_other_label_sets(name, flags, scenario, images, scripts, office31, tmp_path):
    """Without --universal the label sets are tllib's own; --split has any."""
    method = {"openset_domain_adaptation": "osbp"}.get(name, "erm")
    printed, records = run_on_noise(scripts, f"{name}/{method}", office31, tmp_path, "-i", 1, flags=flags)
    assert {record["scenario"] for record in records} == {scenario} and records[0]["num_images"] == images
    assert ("symmetric 0.2" if "--noise" in flags else "clean") in printed.splitlines()


@pytest.mark.slow
def test_folders_of_ones_own(scripts, tmp_path):
    rng = np.random.default_rng(0)
    for domain, names in (("photo", "abc"), ("sketch", "abd")):
        for name in names:
            (tmp_path / "data" / domain / name).mkdir(parents=True)
            for i in range(8):
                pixels = rng.integers(0, 255, (16, 16, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / domain / name / f"{i}.png")
    words = ["-d", "folder", "-s", "photo", "-t", "sketch", "--log", tmp_path / "log"]
    script = scripts / "image_classification" / "erm.py"
    done = python("-m", "tllib_ext.tllib", "--noise", "pair", "--universal", script, tmp_path / "data", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads((tmp_path / "log" / "open_set.json").read_text())
    assert records[0]["split"] == "2/1/1" and records[0]["num_images"] == 24


#: flags, words after the script, what the one line of the error has
REFUSED = [
    (["--universal", "--rate"], [], "--rate: expected one argument"),
    (["--rates", "0.2"], ["erm.py"], "error: "),
    (["--noise", "pair"], ["erm.py", "-s", "A", "-t", "A"], "A is source and target"),
    (["--noise", "pair"], ["erm.py", "-d", "ImageList", "-s", "A", "-t", "D"], "-d ImageList: expected a data set"),
    (["--noise", "pare"], ["erm.py", "-s", "A", "-t", "D"], "did you mean 'pair'"),
    (["--noise", "pair", "--rate", "2"], ["erm.py", "-s", "A", "-t", "D"], "rate 2.0: expected"),
    (["--split", "90/1/1"], ["erm.py", "-s", "A", "-t", "D"], "has 92 classes, the data has 31"),
    (["--universal"], ["idle.py"], "which have -d, -s and -t"),
]
#: runs the commands of a list one after the other, each with its exit code and what it wrote to stderr
IN_ONE_PROCESS = """
import contextlib, io, json, sys
from tllib_ext.tllib.__main__ import main
results = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as text:
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    results.append([code, text.getvalue()])
print(json.dumps(results))
"""


def test_what_cannot_be_run_is_one_line(scripts, office31, tmp_path):
    commands = []
    for flags, words, _ in REFUSED:
        script = [str(scripts / "image_classification" / words[0]), str(office31)] if words else []
        commands.append([*flags, *script, *words[1:], *(["--log", str(tmp_path / "log")] if words else [])])
    done = python("-c", IN_ONE_PROCESS, json.dumps(commands))
    for (code, text), (_, _, message) in zip(json.loads(done.stdout.splitlines()[-1]), REFUSED, strict=True):
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        assert code == 2 and len(errors) == 1 and message in errors[0] and "Traceback" not in text
    assert not (tmp_path / "log" / "open_set.json").exists()


@pytest.mark.slow
def test_a_file_that_a_script_misses_is_its_own_error(scripts, office31):
    done = python("-m", "tllib_ext.tllib", "--universal", scripts / "image_classification" / "lost.py", office31)
    assert done.returncode == 1 and "no_such_list.txt" in done.stderr


def test_a_checkpoint_goes_to_the_networks_that_it_fits(tmp_path):
    first, second, third = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3), torch.nn.Conv2d(1, 1, 1, bias=False)
    states = {"F": {k: v + 1 for k, v in first.state_dict().items()}, "G": third.state_dict()}
    expected = states["F"]["weight"].clone()
    assert restore([third, first, second], states, tmp_path) == [first, third]
    assert torch.equal(first.weight, expected) and not torch.equal(second.weight, expected)
    with pytest.raises(UserError, match="fits none of the networks"):
        restore([third], {"weight": torch.zeros(1), "bias": torch.zeros(1)}, tmp_path)


def test_rules_of_two_heads_and_of_an_own_class():
    """Probabilities are the mean of the heads' over the source classes; the score of OSBP's class is the logit's lead."""
    split = LabelSplit(("a",), ("b",), ("c",))
    logits = [torch.tensor([[9.0, 0, 0], [0, 0, 5]]), torch.tensor([[0.0, 0, 0], [0, 0, 0]])]
    target = Outputs(logits, torch.zeros(2, 4))
    predictions = predictions_of(target, split, None, np.array([0, 1]), has_own_class=True)
    assert list(predictions) == ["entropy", "own class"], "no target model without source features"
    p = (torch.sigmoid(torch.tensor(9.0)) + 0.5) / 2
    torch.testing.assert_close(predictions["entropy"].probs[0], torch.stack([p, 1 - p]))
    assert predictions["own class"].score.tolist() == [-9.0, 5.0] and predictions["own class"].unknown.tolist() == [False, True]
    diverged = Outputs(logits, torch.full((2, 4), torch.nan))
    assert list(predictions_of(diverged, split, diverged, np.array([0, 1]))) == ["entropy"]


def train_two_steps(script, tmp_path, *arguments):
    done = python(
        "-m",
        "tllib_ext.tllib",
        EXAMPLES / "image_classification" / script,
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
@needs_office31
@pytest.mark.slow
@pytest.mark.parametrize("script", ["dann.py", "mcd.py", "cdan.py", "mdd.py", "mcc.py", "afn.py"])
def test_scripts_of_the_real_tllib_on_office31(script, tmp_path):
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


@needs_tllib
@needs_office31
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dann", "mcd", "cdan", "mdd", "osbp", "pada", "iwan"])
def test_scripts_of_the_real_tllib_on_the_noisy_universal_setting(name, tmp_path, monkeypatch):
    """Ten iterations; the open-set and partial scripts have no --scratch and take MobileNetV2's weights."""
    family = {"osbp": "openset", "pada": "partial", "iwan": "partial"}.get(name)
    if family is None:
        words = "-a resnet18 --scratch --train-resizing res. --val-resizing res. --resize-size 64".split()
    else:
        if not WEIGHTS.is_file():
            pytest.skip(f"the weights are not at {WEIGHTS}")
        (tmp_path / "torch/hub/checkpoints").mkdir(parents=True)
        (tmp_path / "torch/hub/checkpoints" / WEIGHTS.name).symlink_to(WEIGHTS)
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
        words = ["-a", "mobilenet_v2"]
    script = EXAMPLES / (f"{family}_domain_adaptation" if family else "image_classification") / f"{name}.py"
    common = "-d Office31 -s W -t D --epochs 1 -i 10 -b 8 -j 0 --seed 0".split()
    flags = "--noise pair --rate 0.2 --universal".split()
    done = python("-m", "tllib_ext.tllib", *flags, script, OFFICE31, *common, *words, "--log", tmp_path / "log")
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads((tmp_path / "log" / "open_set.json").read_text())
    rules = ["entropy", "target-model", *["own class"] * (name == "osbp")]
    assert [record["row"] for record in records] == [f"{name} ({rule})" for rule in rules]
    assert all(record["num_images"] == 332 and record["scenario"] == "universal" for record in records)
    for record in records:
        print(f"{record['row']}: OS {100 * record['os']:.1f}, H-score {100 * record['h_score']:.1f}")
        assert record["row"] in done.stdout
