"""README, docs and help: commands and Python blocks are run on small data, from an empty HOME, with one and two threads."""

import importlib.util
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, load_example, shortened
from documented import PAGES, blocks, commands, examples
from test_compat import REAL
from world import make_world

#: not run here, and why.
ELSEWHERE = {
    "python -m pytest": "it is what runs this",
    "python -m pytest -m slow -s tests/methods/test_authors_loop.py": "needs the authors' code; a test itself",
    "PYTHONPATH=$TLLIB_EXT_REAL_TLLIB python -m pytest -s tests/methods/test_tllib_loops.py": "needs tllib; a test itself",
    "python -m pytest -m slow -s tests/bridge/test_launcher.py -k noisy_universal_setting": "needs tllib; a test itself",
    "export TLLIB_EXT_REAL_DIVOPT=…/Divergence-Optimization TLLIB_EXT_REAL_TLLIB=…/Transfer-Learning-Library": "sets paths",
    "pytest tests/methods/test_method_sweep.py -k smoothing": "test_new_method.py follows CONTRIBUTING.md",
    "python examples/noisy_unida.py -m smoothing": "test_new_method.py follows CONTRIBUTING.md",
    "python examples/noisy_unida.py -m smoothing --list-hp": "test_new_method.py follows CONTRIBUTING.md",
    "python examples/toy.py": "test_toy.py runs the whole script",
    "python examples/toy.py --out toy.png --seed 3": "test_toy.py runs the whole script",
    "python -m tllib_ext.tllib PATH/dann.py data/office31 -d Office31 -s A -t D -a resnet18 --scratch": "bridge/test_launcher.py",
    "python -m tllib_ext.tllib Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py "
    "data/office31 -d Office31 -s A -t D -a resnet18 --scratch --epochs 1": "bridge/test_launcher.py",
    "python -m tllib_ext.tllib --noise pair --rate 0.2 --universal PATH/dann.py data/office31 -d Office31 -s A -t D -a resnet18 "
    "--scratch": "bridge/test_tllib_page.py",
    "python -m tllib_ext.tllib --noise pair --rate 0.2 --universal "
    "Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py "
    "data/office31 -d Office31 -s A -t D -a resnet18 --scratch --epochs 1": "bridge/test_launcher.py",
    "python examples/plain_tllib_loop.py data/office31 -d Office31 -s A -t D --noise pair --rate 0.2 -a resnet50 --scratch":
        "test_plain_tllib_loop.py",
    "python examples/pretrain_small_cnn.py --out small_cnn.safetensors": "hours; test_glyphs.py looks at its result",
    "python examples/label_audit.py data/office31_resnet50 data/transfer_mobilenetv2": "an hour; --table is run",
    "python examples/label_audit.py data/office31_resnet50 data/transfer_mobilenetv2 --again": "an hour; --table is run",
    "python examples/label_audit.py data/office31_resnet50 --class-conditional": "a minute of real features; --table is run",
    "python examples/label_audit.py data/office31_resnet50 --open-set": "real features; --table is run",
    "python tools/target_constants.py data --out records/target_constants.jsonl": "minutes; its records are read",
    "python tools/target_scenarios.py data --groups style,transfer,halves --out records/target_scenarios.jsonl":
        "ten minutes of real features; its records are read",
    "python tests/stress/hard_labels.py data/transfer_mobilenetv2/cifar.npz": "a minute; test_hard_inputs.py has such inputs",
    "python tests/stress/hard_labels.py --random 1000 data/transfer_mobilenetv2/{cifar,caltech,natural}.npz "
    "data/office31_resnet50/{amazon,webcam}.npz": "ten minutes; test_hard_inputs.py has such inputs",
    "OMP_NUM_THREADS=2 /usr/bin/time -v python tests/stress/audit_size.py --samples 1000000 --classes 1000": "minutes",
    "tllib-ext compare data/office31_resnet50 -d features --tasks A2D,W2A,D2W --methods divergence --labels-by label-model "
    "--out runs/by_model --noise pair:0.4,symmetric:0.4,random_partner:0.4,runner_up:0.4,pmd1:0.4,part_dependent:0.4 --seeds 0-2 "
    "--noise-seed same --steps 500": "54 runs; test_treatment.py runs the treatments",
    "python tools/answers_table.py scenarios data --out records/answers_scenarios.jsonl": "ten minutes of real features",
    "python tools/answers_table.py methods data --out records/answers_methods.jsonl": "hours of real features",
    "python tools/answers_table.py figure records/answers_scenarios.jsonl --out docs/images/answers.png": "draws a picture",
    "python tools/answers_table.py tables records --out docs/answers.md": "test_answers_records.py",
    "python examples/draw_characters.py data/characters": "test_draw_characters.py",
    "tllib-ext train data/characters -d folder -s printed -t coloured --split 26/14/22 -a mobilenet_v2 --freeze-backbone "
    "-m mixture": "needs weights from the network and draw_characters.py's images; -d folder is run on other images",
    "pip install -c constraints.txt -e .": "the tests run in such an environment",
    'pip install -c constraints.txt -e ".[compare]"': "the tests run in such an environment",
    'pip install -c constraints.txt -e ".[tllib]"': "needs the network; test_package.py reads the extra",
    "python tools/edit_runs.py --edits 1000": "half an hour; test_edit_runs.py makes forty",
    "python tools/signals.py --signals 60": "ten minutes; test_signals_tool.py sends eight",
    "tllib-ext apply runs/audit/moves.csv": "the tests of the audit run it",
    "tllib-ext apply runs/audit/moves.csv --yes": "the tests of the audit run it",
    "tllib-ext apply labels.csv --root my_photos/labelled": "tests/vision/test_moves.py runs it",
    "tllib-ext apply --yes": "names the flag; docs/own_data.md has it with a file",
    "xdg-open runs/my_run/report.html": "test_page.py looks at the page in a browser",
    "tllib-ext evaluate --all": "names the flag; docs/evaluation.md has it with a file",
}  # fmt: skip


# --- every one of them ------------------------------------------------------------------------------------------------


def test_every_command_of_the_pages_and_of_help_is_run_or_explained(capsys, monkeypatch):
    from tllib_ext.cli.main import COMMANDS, main

    known = commands()
    assert not set(ELSEWHERE) - set(known), "no page says this any more"
    for words in (*([name] for name in COMMANDS), ["reproduce", "table2"]):
        for flag in ("--help", "--help-all"):
            try:
                main([*words, flag])
            except SystemExit:
                pass
            assert not set(examples(capsys.readouterr().out)) - set(known), words
    shown = {" ".join(line.split()) for line in known}
    for page in PAGES:  # a block of another language or an indented line would not be found
        if ROOT / "docs" / "results" in page.parents:
            continue  # records of runs, each with the command that was typed
        text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
        lines = [line.split(" && ")[-1].split(" #")[0].strip() for line in text.splitlines()]
        missing = {line for line in lines if re.match(r"(tllib-ext|python examples/|python -m tllib_ext|torchrun) ?\S", line)}
        assert not {line for line in missing - shown if "`" not in line}, page


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def newcomer(request, world, monkeypatch, tmp_path):
    """The working folder is the world, HOME is empty, PyTorch has so many threads."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("TLLIB_EXT_CACHE", "TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", str(request.param))
    monkeypatch.chdir(world)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def shrunk(command, words):
    """The words of the page and some that make the run short, on a CPU and without a network; a later flag wins."""
    features = "features" in words or "DIR" in words
    own = [] if "--weights" in words or "--run" in words else ["-a", "small_cnn"]
    words = [{"layer4": "stages.2"}.get(word, word) for word in words]
    images = [] if features else [*own, "--image-size", "32", "-j", "0"]
    if command == "train":
        more = "" if "--list-hp" in words else "--steps 1 --device cpu --no-report --log runs/again --overwrite"
        return words + more.split() + images
    if command in ("compare", "reproduce"):
        more = "--seeds 0 -b 8 --device cpu --no-report --out runs/grid --overwrite".split()
        methods = words[words.index("--methods") + 1] if "--methods" in words else ""
        few = "source_only,divergence" if methods == "all" else ",".join(methods.split(",")[:2])
        more += (["--methods", few] if few else []) + ([] if few == "mixture" else ["--steps", "1"])
        if "--tasks all" in " ".join(words) or "table2" in words:  # the default of a table are all tasks
            more += ["--tasks", "A2D"]
        return words + more + images
    if command == "classify":
        return words + "--device cpu --no-open --overwrite --out runs/classified".split() + images
    if command == "predict":
        return [word.replace("my_run", "photos") for word in words]
    if command == "doctor":
        return words + "--device cpu -m source_only,divergence".split()
    if command in ("features", "audit") and not any(word.endswith(".npz") for word in words):
        return words + own + ["--overwrite"] * (command == "features")
    return words


def in_this_process(cells, out, jobs=1, keep=(), total=None):
    """The work of a grid's processes."""
    from tllib_ext.experiments.runner import run_cell

    done = [(cell, run_cell(cell, Path(out), keep)[0]) for cell in cells]
    return [(cell, error) for cell, error in done if error is not None]


@pytest.mark.slow
@pytest.mark.parametrize("line", [pytest.param(line, id=f"{page}:{line[:60]}") for line, page in commands().items()])
def test_commands_run(line, newcomer, monkeypatch, capfd, tmp_path):
    from tllib_ext.cli.main import main
    from tllib_ext.cli.parser import run_main

    if line in ELSEWHERE:
        pytest.skip(ELSEWHERE[line])
    monkeypatch.setattr("tllib_ext.experiments.compare.run_cells", in_this_process)
    words = [word.replace("$SLURM_NNODES", "2") for word in shlex.split(line)]
    if words[0].startswith("PYTHONPATH="):
        words = words[1:]
    if any(re.match("tllib($|:)", word) for word in words):  # its methods
        monkeypatch.syspath_prepend(REAL or "")
        if importlib.util.find_spec("tllib") is None:
            pytest.skip("set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
    if "torchrun" in words:  # its flags are understood; what it starts is run once, and in test_distributed.py twice
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
        words = ["python", parsed.training_script, *parsed.training_script_args]
    if words[0] == "tllib-ext":
        assert main([words[1], *shrunk(words[1], words[2:])]) == 0, capfd.readouterr().err
        return
    assert words[0] == "python", f"do not know how to run: {line}"
    if words[1] == "-m":
        monkeypatch.setattr(sys, "argv", words[2:])
        try:
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            assert not stop.code, capfd.readouterr().err
        return
    name = re.fullmatch(r"examples/(\w+)\.py", words[1])[1]
    if name == "benchmark":
        pytest.skip("test_benchmark.py times small things")
    script = load_example(name)
    if name == "label_audit":  # it writes into the documentation
        script.RECORDS, script.PAGE = tmp_path / "records", tmp_path / "page.md"
        shutil.copytree(ROOT / "docs" / "results" / "labels", script.RECORDS)
        shutil.copy(ROOT / "docs" / "label_model.md", script.PAGE)
    command = {"noisy_unida": "train"}.get(name, name)
    monkeypatch.setattr(sys, "argv", [words[1], *shrunk(command, words[2:])])
    assert not run_main(script.main), capfd.readouterr().err


# --- Python -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page, code", [pytest.param(*block, id=f"{block[0]}-{i}") for i, block in enumerate(blocks("python"))])
def test_python_blocks_run(page, code, newcomer):
    if page.name == "CONTRIBUTING.md":
        pytest.skip("test_new_method.py follows it")
    if page.name == "tllib.md":
        pytest.skip("bridge/test_tllib_page.py runs it, on a stand-in of tllib")
    if "cleanlab" in code:
        pytest.importorskip("cleanlab")
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 20
    features = (np.eye(20)[labels] + 0.1 * rng.normal(size=(400, 20))).astype(np.float32)
    code = shortened(code.replace("runs/my_run", "runs/photos"))
    names = dict.fromkeys(("features", "new_features", "source_features", "target_features"), features)
    exec(compile(code, str(page), "exec"), {**names, "labels": labels})
