"""Everything a user can get wrong, over all scripts: a code, at most three lines, no traceback, nothing half-written.

More of it stands with the scripts' own tests.
"""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tllib_ext.errors import run_main
from tllib_ext.evaluation import __main__ as evaluation
from tllib_ext.report import __main__ as report

TASK = ("{f}", "-d", "features", "-s", "alpha", "-t", "beta", "--split", "3/2/1", "-b", "8", "--steps", "2", "--no-report")
IMAGES = ("{i}", "-s", "photo", "-t", "sketch", "-b", "4", "-a", "resnet18")
HEAD = "index,label,predicted,score,top1\n"
DEEP = "[" * 20_000 + "]" * 20_000


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('code of the file was run')",)


@pytest.fixture(scope="module")
def t(tmp_path_factory, feature_root):
    """A folder of files of which none is good."""
    t = tmp_path_factory.mktemp("bad")
    texts = {
        "afile": "x", "bomb.yaml": "a: &a [x,x]\nb: &b [*a,*a,*a]\nhp: [*b,*b,*b]\n", "deep.yaml": f"hp: {DEEP}\n",
        "long.yaml": "# long\n" * 20_000, "list.yaml": "- noise\n", "tag.yaml": "noise: !!python/object/apply:os.system [ls]\n",
        "empty.yaml": "", "q_nan.csv": "nan,0\n0,1\n", "q_neg.csv": "2,-1\n0,1\n", "q_words.csv": "a,b\n", "q_big.csv": "1\n",
        "p_head.csv": "a,b\n1,2\n", "p_empty.csv": "", "p_none.csv": "index,label,predicted,score,top1\n",
        "p_twice.csv": "index,label,predicted,score,top1\n1,a,a,0,a\n1,a,a,0,a\n",
        "p_nan.csv": f"{HEAD}1,a,a,nan,a\n", "p_class.csv": f"{HEAD}1,zebra,a,0,a\n", "p_cells.csv": f"{HEAD}1,a,a,0\n",
        "p_int.csv": f"{HEAD}x,a,a,0,a\n",
        "deep.json": DEEP, "split.json": '{"split": {"shared": "a"}}', "plain.json": "{}",
    }  # fmt: skip
    for name, text in texts.items():
        (t / name).write_text(text)
    (t / "binary").write_bytes(bytes(range(256)))
    good = dict(np.load(feature_root / "alpha.npz"))
    wrong = {
        "cut": None, "objects": {**good, "classes": np.array([Trap()] * 6, dtype=object)},
        "no_classes": {"features": good["features"]},
        "wide": {**good, "features": np.ones((72, 9), np.float32)}, "nan": {**good, "features": good["features"] * np.nan},
        "labels": {**good, "labels": good["labels"] + 5}, "flat": {**good, "features": good["features"].ravel()},
        "paths": {**good, "paths": good["paths"][:3]}, "words": {**good, "features": np.full((72, 8), "x")},
    }  # fmt: skip
    for name, arrays in wrong.items():
        folder = t / f"npz_{name}"
        folder.mkdir()
        (folder / "alpha.npz").write_bytes((feature_root / "alpha.npz").read_bytes())
        if arrays is None:
            (folder / "beta.npz").write_bytes((feature_root / "beta.npz").read_bytes()[:900])
        else:
            np.savez(folder / "beta.npz", **arrays)
    np.save(t / "q_objects.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    torch.save({"x": Trap()}, t / "trap.pth")
    Image.new("RGB", (9, 9)).save(t / "photo.jpg")
    for name, metadata in {"none": None, "list": "[]", "deep": DEEP, "other": '{"format": 1, "method": 3}'}.items():
        (t / f"model_{name}").mkdir()
        save_file({"a": torch.zeros(1)}, t / f"model_{name}" / "model.safetensors", metadata and {"tllib_ext": metadata})
    (t / "model_cut").mkdir()
    (t / "model_cut" / "model.safetensors").write_bytes(b"\xff" * 40)
    for name in ("results.json", "config.json"):
        folder = t / f"run_{name[:-5]}"
        folder.mkdir()
        (folder / "results.json").write_text("{}")
        (folder / "config.json").write_text('{"split": {"shared": ["a", "b"]}}')
        (folder / name).write_text(DEEP)
    (t / "empty" / "a").mkdir(parents=True)
    (t / "empty" / "b").mkdir()
    (t / "loose" / "a").mkdir(parents=True)
    (t / "loose" / "b").mkdir()
    for domain in "ab":
        (t / "loose" / domain / "1.png").write_bytes(b"x")
    return t


def flag(*words):
    return (*TASK, *words)


TRAIN = {
    "no steps": (flag("--steps", "0"), "1 or more"),
    "steps of a method without training": (flag("-m", "mixture", "--steps", "9"), "--steps 9: mixture is not trained"),
    "too many steps": (flag("--steps", "9" * 30), "at most"),
    "half a step": (flag("--steps", "1.5"), "--steps"),
    "negative batch": (flag("-b", "-3"), "1 or more"),
    "learning rate nan": (flag("--lr", "nan"), "positive number"),
    "learning rate inf": (flag("--lr", "inf"), "positive number"),
    "rate nan": (flag("--rate", "nan"), "[0, 1)"),
    "negative seed": (flag("--seed", "-1"), "0 or more"),
    "huge seed": (flag("--seed", "9" * 25), "at most"),
    "huge noise seed": (flag("--noise-seed", str(2**32)), "at most"),
    "a hundred thousand workers": (flag("-j", "100000"), "at most 256"),
    "minutes nan": (flag("--checkpoint-minutes", "nan"), "positive number"),
    "threshold nan": (flag("-m", "source_only", "--unknown-threshold", "nan"), "expected a number"),
    "keep nothing": (flag("--keep", "0"), "1 or more"),
    "unknown precision": (flag("--precision", "fp64"), "fp64"),
    "unknown policy": (flag("--on-bad-image", "maybe"), "maybe"),
    "no such device": (flag("--device", "abacus"), "try --device cpu"),
    "log is a file": (flag("--log", "{t}/afile"), "afile"),
    "log below a file": (flag("--log", "{t}/afile/run"), "afile"),
    "log of a long name": (flag("--log", "{t}/" + "x" * 300), "File name too long"),
    "log with a line break": (flag("--steps", "0", "--log", "a\nb"), "1 or more"),
    "missing yaml": (flag("-c", "{t}/none.yaml"), "No such file"),
    "yaml is a folder": (flag("-c", "{t}"), "cannot read the configuration"),
    "yaml is binary": (flag("-c", "{t}/binary"), "not valid YAML"),
    "yaml bomb": (flag("-c", "{t}/bomb.yaml"), "alias"),
    "deep yaml": (flag("-c", "{t}/deep.yaml"), "levels"),
    "long yaml": (flag("-c", "{t}/long.yaml"), "too long"),
    "yaml list": (flag("-c", "{t}/list.yaml"), "expected lines"),
    "yaml with code": (flag("-c", "{t}/tag.yaml"), "not valid YAML"),
    "empty yaml": (flag("-c", "{t}/empty.yaml"), "expected lines"),
    "features cut off": (("{t}/npz_cut", *TASK[1:]), "cannot read features"),
    "features with code": (("{t}/npz_objects", *TASK[1:]), "cannot read features"),
    "features without classes": (("{t}/npz_no_classes", *TASK[1:]), "has no classes"),
    "features of two widths": (("{t}/npz_wide", *TASK[1:]), "wide"),
    "features of nan": (("{t}/npz_nan", *TASK[1:]), "NaN"),
    "labels out of range": (("{t}/npz_labels", *TASK[1:]), "labels must be"),
    "flat features": (("{t}/npz_flat", *TASK[1:]), "expected (N, D)"),
    "too few paths": (("{t}/npz_paths", *TASK[1:]), "paths for"),
    "features of words": (("{t}/npz_words", *TASK[1:]), "expected (N, D)"),
    "no features": (("{t}/empty", *TASK[1:]), "<domain>.npz"),
    "empty folders": (("{t}/empty", "-d", "folder", "-s", "a", "-t", "b"), "no images in"),
    "source without classes": (("{t}/loose", "-d", "folder", "-s", "a", "-t", "b"), "no class folders"),
    "missing matrix": (flag("--noise", "{t}/none.csv"), "cannot read the transition matrix"),
    "matrix of nan": (flag("--split", "2/0/1", "--noise", "{t}/q_nan.csv"), "non-finite"),
    "negative matrix": (flag("--split", "2/0/1", "--noise", "{t}/q_neg.csv"), "negative"),
    "matrix of words": (flag("--noise", "{t}/q_words.csv"), "not a matrix"),
    "matrix of another size": (flag("--noise", "{t}/q_big.csv"), "expected (5, 5)"),
    "matrix with code": (flag("--noise", "{t}/q_objects.npy"), "not a matrix"),
    "drop rate of words": (flag("--drop-rate", "abc"), "drop-rate"),
    "drop rate above one": (flag("--drop-rate", "2"), "drop-rate"),
    "negative drop rate": (flag("--drop-rate", "-1"), "drop-rate"),
    "no heads": (flag("--hp", "heads=0"), "heads"),
    "negative repeats": (flag("--hp", "n=-1"), "n=-1"),
    "unknown delta": (flag("--hp", "delta=wide"), "delta"),
    "no temperature": (flag("--hp", "temperature=0"), "temperature"),
    "empty split": (flag("--split", "0/0/0"), "at least 2 source classes"),
    "short split": (flag("--split", "3/2"), "3/2"),
    "weights that are a photograph": (
        (*IMAGES, "--weights", "{t}/photo.jpg"),
        "photo.jpg holds no weights but a JPEG image: expected a .safetensors file, or a state dict",
    ),
    "weights with code": ((*IMAGES, "--weights", "{t}/trap.pth"), "cannot read the weights"),
    "weights are a folder": ((*IMAGES, "--weights", "{t}"), "no weights file"),
    "test of a foreign model": (flag("--phase", "test", "--log", "{t}/model_none"), "not written by this version"),
    "test of a damaged model": (flag("--phase", "test", "--log", "{t}/model_cut"), "cannot read the model"),
}  # fmt: skip
COMPARE = {
    "unknown metric": (("--metric", "accurracy"), "did you mean"),
    "seeds backwards": (("--seeds", "5-1"), "smaller to a larger"),
    "huge noise seed": (("--noise-seed", "9" * 20, "--tasks", "alpha:beta", "--methods", "source_only"), "noise-seed"),
    "no jobs": (("--jobs", "0"), "1 or more"),
    "out is a file": (("--out", "{t}/afile", "--tasks", "alpha:beta", "--methods", "source_only"), "afile"),
    "yaml bomb": (("-c", "{t}/bomb.yaml"), "alias"),
    "rate of a noise": (("--noise", "pair:1.5"), "[0, 1)"),
    "matrix that is missing": (("--noise", "none.npy"), "no such file"),
    "half a task": (("-s", "alpha"), "belong together"),
}  # fmt: skip
PREDICT = {
    "no run": (("{t}/none", "{i}"), "no run folder"),
    "run without a model": (("{t}/empty", "{i}"), "no model in"),
    "foreign model": (("{t}/model_none", "{i}"), "not written by this version"),
    "model of a list": (("{t}/model_list", "{i}"), "not written by this version"),
    "deep metadata": (("{t}/model_deep", "{i}"), "cannot read the model"),
    "model without a method": (("{t}/model_other", "{i}"), "which method"),
    "damaged model": (("{t}/model_cut", "{i}"), "cannot read the model"),
    "no words": ((), "required"),
    "unknown format": (("{t}/none", "{i}", "--format", "xml"), "xml"),
}  # fmt: skip
EVALUATION = {
    "missing file": (("{t}/none.csv",), "none.csv"),
    "no label sets": (("{t}/p_none.csv",), "label sets"),
    "another header": (("{t}/p_head.csv", "--shared", "a,b"), "header"),
    "empty file": (("{t}/p_empty.csv", "--shared", "a,b"), "empty"),
    "no rows": (("{t}/p_none.csv", "--shared", "a,b"), "no rows"),
    "index twice": (("{t}/p_twice.csv", "--shared", "a,b"), "twice"),
    "score nan": (("{t}/p_nan.csv", "--shared", "a,b"), "NaN"),
    "unknown class": (("{t}/p_class.csv", "--shared", "a,b"), "zebra"),
    "cells missing": (("{t}/p_cells.csv", "--shared", "a,b"), "cells"),
    "index of words": (("{t}/p_int.csv", "--shared", "a,b"), "integer"),
    "binary": (("{t}/binary", "--shared", "a,b"), "binary"),
    "deep label sets": (("{t}/p_nan.csv", "--split-file", "{t}/deep.json"), "label sets"),
    "label sets of another kind": (("{t}/p_nan.csv", "--split-file", "{t}/split.json"), "label sets"),
    "threshold nan": (("{t}/p_class.csv", "--shared", "a,zebra", "--threshold", "nan"), "NaN"),
    "both label sets": (("{t}/p_nan.csv", "--split-file", "{t}/plain.json", "--shared", "a,b"), "not both"),
}  # fmt: skip
REPORT = {
    "no run": (("{t}/none",), "none"),
    "unfinished run": (("{t}/empty",), "empty"),
    "deep results": (("{t}/run_results",), "run_results"),
    "deep configuration": (("{t}/run_config",), "config.json"),
}  # fmt: skip
REPRODUCE = {
    "unknown experiment": (("tabel2",), "did you mean"),
    "no data": (("table2", "nowhere"), "nowhere"),
    "bad points": (("noise_sweep", "{f}", "--points", "2"), "[0, 1)"),
    "yaml bomb": (("table2", "{f}", "-c", "{t}/bomb.yaml"), "alias"),
}  # fmt: skip
ALL = {"noisy_unida": TRAIN, "compare": COMPARE, "predict": PREDICT, "evaluation": EVALUATION, "report": REPORT,
       "reproduce": REPRODUCE}  # fmt: skip
CASES = [(script, case) for script, cases in ALL.items() for case in cases]


def test_there_are_many():
    assert len(CASES) >= 100


@pytest.mark.parametrize("script, case", CASES, ids=[f"{script}-{case}" for script, case in CASES])
def test_bad_input(run_example, feature_root, image_root, t, tmp_path, monkeypatch, capfd, script, case):
    words, message = ALL[script][case]
    if script == "compare":
        words = ("{f}", "-d", "features", *words)
    words = [word.format(f=feature_root, i=image_root, t=t) for word in words]
    before = {path for folder in (t, tmp_path) for path in folder.rglob("*")}
    if script in ("evaluation", "report"):
        monkeypatch.setattr(sys, "argv", [script, *words])
        capfd.readouterr()
        try:
            code = run_main({"evaluation": evaluation, "report": report}[script].main)
        except SystemExit as error:
            code = error.code
        err = capfd.readouterr().err
    else:
        code, _, err = run_example(script, *words)
    assert code == 2, err
    assert message in err and len(err.strip().splitlines()) <= 3 and "Traceback" not in err and "code of the file" not in err
    new = {path for folder in (t, tmp_path) for path in folder.rglob("*")} - before
    assert not [path for path in new if path.is_file() and path.name != ".lock"], new


def test_numbers_that_only_training_finds_out(run_example, feature_root, tmp_path):
    words = [word.format(f=feature_root) for word in flag("--log", "run", "--hp", "eta=nan", "warmup=0")]
    code, _, err = run_example("noisy_unida", *words)
    assert code in (2, 3) and "eta" in err or "is nan at step" in err
    assert len(err.strip().splitlines()) == 1 and not (tmp_path / "run" / "results.json").exists()


def test_json_that_is_not_finite_never_comes_out(run_example, feature_root, tmp_path):
    words = [word.format(f=feature_root) for word in flag("--log", "run")]
    code, _, err = run_example("noisy_unida", *words)
    assert code == 0, err

    def refuse(text):
        raise AssertionError(text)

    for name in ("results.json", "config.json"):
        json.loads((tmp_path / "run" / name).read_text(), parse_constant=refuse)
