"""examples/noisy_unida.py run for real on small data, and with everything that can be wrong."""

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, SHARED

from tllib_ext.cli.main import main as tllib_ext_main

ROLES = ("-s", "alpha", "-t", "beta", "--split", "3/2/1", "-b", "8")
FEATURES = ("-d", "features", *ROLES, "--steps", "6", "--eval-every", "3")
TINY = ("-a", "small_cnn", "-b", "4", "--image-size", "32", "--steps", "3", "-j", "0")


def test_features_run_writes_its_folder_and_its_report_repeats_it(run_example, feature_root, tmp_path, monkeypatch):
    root = os.path.relpath(feature_root, tmp_path)
    code, out, err = run_example("noisy_unida", root, *FEATURES, "--noise", "pair", "--log", "run")
    assert code == 0, err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["method"] == "divergence" and results["source"] == "alpha" and 0 <= results["os"] <= 1
    assert results["oracle_os"] >= results["os"]
    assert len((tmp_path / "run" / "results.jsonl").read_text().splitlines()) == 2
    for name in ("config.json", "env.json", "predictions.csv", "model.safetensors", "checkpoints/last.pt", "tb"):
        assert (tmp_path / "run" / name).exists(), name
    assert "OS: mean recall" in out and "files in run" in out
    assert not list((tmp_path / "run").rglob("*.part"))
    page, model = (tmp_path / "run" / "report.html").read_text(), (tmp_path / "run" / "model.safetensors").read_bytes()
    cd, here, then, *repeat = shlex.split(html.unescape(re.search("<pre>(.*?)</pre>", page, re.S)[1]))
    assert (cd, here, then, *repeat[:2]) == ("cd", str(tmp_path), "&&", "tllib-ext", "train")
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr("tllib_ext.api.write_report", lambda *_: None)  # the page is there already
    assert tllib_ext_main(repeat[1:]) == 0 and (tmp_path / "run" / "model.safetensors").read_bytes() == model
    assert tllib_ext_main(repeat[1:]) == 0  # --overwrite: a finished run is no error


def test_phase_test_repeats_the_last_evaluation(run_example, feature_root, tmp_path):
    run_example("noisy_unida", feature_root, *FEATURES, "--noise", "pair", "--log", "run", "--hp", "pred_head=sum", "--no-report")
    os_value = json.loads((tmp_path / "run" / "results.json").read_text())["os"]
    code, out, err = run_example("noisy_unida", feature_root, *FEATURES, "--noise", "pair", "--log", "run", "--phase", "test")
    assert code == 0, err
    assert f"{os_value:.4f}" in out


def test_same_command_same_bytes_and_finished_runs_stay(run_example, feature_root, tmp_path):
    for _ in range(2):
        code, _, err = run_example("noisy_unida", feature_root, *FEATURES, "--noise", "symmetric", "--no-report")
        assert code == 0, err
    first, second = sorted((tmp_path / "runs").iterdir())
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert (first / "results.json").read_bytes() == (second / "results.json").read_bytes()


def test_folders_with_images_of_any_size(run_example, image_root, tmp_path):
    code, out, err = run_example("noisy_unida", image_root, "-s", "photo", "-t", "sk", *TINY, "--no-report", "--log", "run")
    assert code == 0, err
    assert "universal label sets 2/1/1" in out
    assert json.loads((tmp_path / "run" / "results.json").read_text())["data"] == "folder"


def test_unlabelled_target_gets_predictions_and_no_score(run_example, image_root, tmp_path):
    code, out, err = run_example(
        "noisy_unida", image_root, "-s", "photo", "-t", "new", *TINY, "--drop-rate", "0.1", "--no-report", "--log", "run"
    )
    assert code == 0, err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert "os" not in results and 0 <= results["predicted_unknown"] <= 1
    assert len((tmp_path / "run" / "predictions.csv").read_text().splitlines()) == 7
    assert "unlabelled" in out and "the target may hold any of them, and others" in out and "closed label sets " not in out


def test_workers_and_cache_do_not_change_a_bit(run_example, image_root, tmp_path):
    flags = (image_root, "-s", "photo", "-t", "sketch", *TINY[:-2], "--target-aug", "train", "--no-report")
    for folder, words in {"kept": "-j 0 --cache ram", "read": "-j 0 --cache off", "workers": "-j 2 --cache off"}.items():
        code, _, err = run_example("noisy_unida", *flags, *words.split(), "--log", folder)
        assert code == 0, err
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in ("kept", "read", "workers")}) == 1


def test_frozen_backbone_is_extracted_once(run_example, image_root, tmp_path):
    flags = (image_root, "-s", "photo", "-t", "sketch", *TINY, "--freeze-backbone", "--no-report")
    code, _, err = run_example("noisy_unida", *flags, "--log", "one")
    assert code == 0, err
    files = {f: f.stat().st_mtime_ns for f in (tmp_path / "cache" / "features").glob("*.npy")}
    assert len(files) == 2
    run_example("noisy_unida", *flags, "--log", "two")
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "cache" / "features").glob("*.npy")} == files
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()


def test_yaml_is_under_the_flags(run_example, feature_root, tmp_path):
    (tmp_path / "c.yaml").write_text("noise: symmetric\nrate: 0.4\nsteps: 2\nhp: {eta: 0.2}\nscratch: false\n")
    words = (feature_root, *ROLES, "-c", "c.yaml", "--rate", "0.3", "--no-report", "--log", "run")
    code, _, err = run_example("noisy_unida", *words)
    assert code == 0, err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["noise"], config["rate"], config["steps"], config["hparams"]["eta"]) == ("symmetric", 0.3, 2, 0.2)


def test_a_changed_run_is_not_continued(run_example, feature_root, tmp_path):
    words = (feature_root, *FEATURES, "--log", "run", "--no-report")
    run_example("noisy_unida", *words)
    (tmp_path / "run" / "results.json").unlink()
    code, _, err = run_example("noisy_unida", *words, "--lr", "0.5")
    assert code == 2 and "another, unfinished run (lr 0.01 -> 0.5)" in err
    code, out, err = run_example("noisy_unida", *words)
    assert code == 0 and "going on at step 6 of 6" in out + err
    assert (tmp_path / "run" / "results.json").exists()


def test_list_hp_and_presets(run_example):
    code, out, _ = run_example("noisy_unida", "--list-hp")
    assert code == 0 and "eta" in out and "0.05" in out
    code, out, _ = run_example("noisy_unida", "--list-hp", "--preset", "paper")
    assert code == 0 and "log_k" in out


BAD = {
    "missing folder": (["nowhere", "-s", "A", "-t", "D"], "no data folder nowhere"),
    "missing folder of a known layout": (["nowhere", "-d", "Office31", "-s", "A", "-t", "D"],
                                        "put the archives of Office31 into nowhere (amazon.tgz from"),
    "unknown dataset": (["{f}", "-d", "Ofice31", "-s", "A", "-t", "D"], "did you mean 'Office31'"),
    "unknown domain": (["{f}", "-s", "alpa", "-t", "beta"], "did you mean 'alpha'"),
    "unknown method": (["{f}", "-m", "divergance", "-s", "alpha", "-t", "beta"], "did you mean 'divergence'"),
    "unknown backbone": (["{i}", "-s", "photo", "-t", "sketch", "-b", "4", "-a", "resnet51"], "did you mean 'resnet50'"),
    "rate of one": (["{f}", "-s", "alpha", "-t", "beta", "--noise", "pair", "--rate", "1"], "[0, 1)"),
    "negative rate": (["{f}", "-s", "alpha", "-t", "beta", "--noise", "pair", "--rate", "-0.1"], "[0, 1)"),
    "unknown noise": (["{f}", "-s", "alpha", "-t", "beta", "--noise", "pairs"], "did you mean 'pair'"),
    "rows that do not sum to one": (["{f}", "-s", "alpha", "-t", "beta", "--split", "2/0/1", "--noise", "{t}/q.csv"],
                                    "row 1 sums to 0.5"),
    "split too large": (["{f}", "-s", "alpha", "-t", "beta", "--split", "9/9/9"], "27 classes, the data has 6"),
    "split that is none": (["{f}", "-s", "alpha", "-t", "beta", "--split", "all"], "neither a/b/c"),
    "source = target": (["{f}", "-s", "alpha", "-t", "ALPHA"], "the same domain"),
    "no domains": (["{f}"], "domains here: alpha, beta, gamma"),
    "batch larger than the domain": (["{f}", "-s", "alpha", "-t", "beta", "-b", "100"], "larger than the domain"),
    "unknown YAML key": (["{f}", "-s", "alpha", "-t", "beta", "-c", "{t}/bad.yaml"], "did you mean 'noise'"),
    "wrong YAML value": (["{f}", "-s", "alpha", "-t", "beta", "-c", "{t}/bad2.yaml"], "steps"),
    "unknown flag": (["{f}", "--nois", "pair"], "did you mean '--noise'"),
    "unknown hyper-parameter": (["{f}", "-s", "alpha", "-t", "beta", "--hp", "etta=1"], "did you mean 'eta'"),
    "hyper-parameter without value": (["{f}", "-s", "alpha", "-t", "beta", "--hp", "eta"], "NAME=VALUE"),
    "hyper-parameter of another type": (["{f}", "-s", "alpha", "-t", "beta", "--hp", "n=many"], "expected a number"),
    "unknown preset": (["{f}", "-s", "alpha", "-t", "beta", "--preset", "papr"], "did you mean 'paper'"),
    "truncated image": (["{t}/broken", "-s", "a", "-t", "b", "-a", "small_cnn", "-b", "2", "--steps", "2", "-j", "0"], "bad.png"),
    "list without label": (["{t}/office", "-s", "A", "-t", "D"], "expected 'path label'"),
    "weights that do not fit": (["{i}", "-s", "photo", "-t", "sketch", "-b", "4", "-a", "resnet18", "--weights", "{t}/w.pth"],
                                "do not fit the backbone"),
    "weights that are none": (["{i}", "-s", "photo", "-t", "sketch", "-b", "4", "-a", "resnet18", "--weights", "{t}/q.csv"],
                              "cannot read the weights"),
    "no weights here": (["{i}", "-s", "photo", "-t", "sketch", "-b", "4", "--no-download"], "or give --weights FILE"),
    "device": (["{f}", "-s", "alpha", "-t", "beta", "--device", "cuda:7"], "try --device cpu"),
    "resume of nothing": (["{f}", "-s", "alpha", "-t", "beta", "-b", "8", "--resume", "--log", "{t}/none"], "no run in"),
    "test without a run": (["{f}", "-s", "alpha", "-t", "beta", "--phase", "test"], "--log"),
    "test without a model": (["{f}", "-s", "alpha", "-t", "beta", "--phase", "test", "--log", "{t}/none"], "no model in"),
    "tllib missing": (["{f}", "-d", "tllib:Office31", "-s", "A", "-t", "D"], "pip install"),
}  # fmt: skip


@pytest.fixture
def bad_files(tmp_path, image_root):
    (tmp_path / "q.csv").write_text("1,0\n0,0.5\n")
    (tmp_path / "bad.yaml").write_text("nois: pair\n")
    (tmp_path / "bad2.yaml").write_text("steps: many\n")
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "w.pth")
    good = sorted((image_root / "photo" / "red").iterdir())
    for domain in "ab":
        for name in ("x", "y"):
            (tmp_path / "broken" / domain / name).mkdir(parents=True)
            for i in range(3):
                (tmp_path / "broken" / domain / name / f"{i}.png").write_bytes(good[i].read_bytes())
    (tmp_path / "broken" / "a" / "x" / "bad.png").write_bytes(good[0].read_bytes()[:60])
    (tmp_path / "office" / "image_list").mkdir(parents=True)
    for name in ("amazon", "dslr", "webcam"):
        (tmp_path / "office" / "image_list" / f"{name}.txt").write_text("amazon/images/mug/1.jpg\n")
    return tmp_path


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_no_file(run_example, feature_root, image_root, bad_files, case, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(bad_files / "torch"))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "tllib" not in p.lower() or p == str(ROOT)])
    words, message = BAD[case]
    before = {p for p in bad_files.rglob("*")}
    code, out, err = run_example("noisy_unida", *[w.format(f=feature_root, i=image_root, t=bad_files) for w in words])
    assert code == 2, (out, err)
    assert message in err and len(err.strip().splitlines()) == 1 and "Traceback" not in err
    new = {p for p in bad_files.rglob("*")} - before
    assert not [p for p in new if "runs" in p.parts or p.name.endswith(".part")], new


def test_an_image_that_a_worker_cannot_read(run_example, bad_files):
    for file in (bad_files / "broken" / "a").rglob("*.png"):
        file.write_bytes(file.read_bytes()[:60])
    words = (bad_files / "broken", *"-s a -t b -a small_cnn -b 2 --steps 2 -j 1 --cache off".split())
    code, _, err = run_example("noisy_unida", *words, "--log", "run")
    assert code == 2 and "unreadable image" in err and ".png" in err and len(err.strip().splitlines()) == 1


def test_help_imports_no_torch():
    code = (
        "import runpy, sys\n"
        "sys.argv = ['x', '--help-all']\n"
        "try: runpy.run_path('examples/noisy_unida.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}
    )
    assert out.returncode == 0, out.stderr
    assert "label noise" in out.stdout and "--noise-mode" in out.stdout


def test_import_is_light():
    code = "import sys, tllib_ext; assert not {'torch', 'torchvision', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
def test_real_office31_features(run_example, tmp_path):
    root = SHARED / "data" / "office31_resnet50"
    if not root.exists():
        pytest.skip("Office-31 features are not here")
    words = (root, "-d", "features", "-s", "amazon", "-t", "dslr", "--noise", "pair", "--rate", "0.2", "--steps", "1000", "--log")
    scores = []
    for method in ("divergence", "source_only"):
        code, _, err = run_example("noisy_unida", *words, method, "-m", method, "--eval-every", "1000")
        assert code == 0, err
        scores.append(json.loads((tmp_path / method / "results.json").read_text())["os"])
    assert scores[0] > 0.78 and scores[0] > scores[1] + 0.1
    assert np.isfinite(scores).all()
