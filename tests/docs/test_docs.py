"""README and docs: commands and Python blocks are run, on data small enough for a test."""

import re
import runpy
import shlex
import sys

import numpy as np
import pytest
from conftest import ROOT, load_example, shortened

PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
pytestmark = pytest.mark.slow  # some fifty short runs; test_readme.py looks at the flags alone, quickly
#: run by another test: this one would run itself, or needs what only that one makes.
ELSEWHERE = {
    "python -m pytest": "it is what runs this",
    "pytest tests/methods/test_method_sweep.py -k smoothing": "test_new_method.py follows CONTRIBUTING.md",
    "python examples/noisy_unida.py -m smoothing": "test_new_method.py follows CONTRIBUTING.md",
    "python examples/noisy_unida.py -m smoothing --list-hp": "test_new_method.py follows CONTRIBUTING.md",
    "python examples/toy.py": "test_toy.py runs the whole script",
    "python -m tllib_ext.tllib PATH/dann.py data/office31 -d Office31 -s A -t D -a resnet18 --scratch": "test_tllib_launcher.py",
    "pip install -c constraints.txt -e .": "the tests run in such an environment",
    "sh runs/audit/move_files.sh": "the tests of the audit run it",
    "xdg-open runs/my_run/report.html": "test_page.py looks at the page in a browser",
}


def blocks(language):
    for page in PAGES:
        for text in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
            yield page.relative_to(ROOT), text


def commands():
    """Every command once, with the page that says it first; comments and installation are cut off."""
    found = {}
    for page, text in blocks("bash"):
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            line = line.split(" && ")[-1].split(" #")[0].strip()
            if line and not line.startswith("#"):
                found.setdefault(line, page)
    return [pytest.param(line, id=f"{page}:{line[:60]}") for line, page in found.items()]


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder in which the pages' names exist: small Office-31, its features, photos, a finished run."""
    from PIL import Image

    from tllib_ext.cli.parser import run_main
    from tllib_ext.vision.datasets.benchmarks import BENCHMARKS

    root, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)

    def photo(path, colour):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((colour + rng.integers(0, 40, (12, 12, 3))).astype(np.uint8)).save(path)

    office, names = root / "data" / "office31", BENCHMARKS["Office31"].classes
    colours = rng.integers(0, 200, (len(names), 3))
    (office / "image_list").mkdir(parents=True)
    for domain, stem in BENCHMARKS["Office31"].lists.items():
        paths = [f"{domain}/images/{name}/{i}.png" for name in names for i in range(2)]
        for path, colour in zip(paths, colours.repeat(2, 0)):
            photo(office / path, colour)
        lines = [f"{path} {k // 2}" for k, path in enumerate(paths)]
        (office / "image_list" / f"{stem}.txt").write_text("\n".join(lines) + "\n")
        for folder in ("DIR", "data/office31_resnet50", "data/office31_features"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            np.savez(root / folder / f"{domain}.npz", features=rng.normal(size=(62, 8)).astype(np.float32),
                     labels=np.arange(62) // 2, classes=np.array(names))  # fmt: skip
    for number, name in enumerate(["mouse", "mug", "pen"]):
        for i in range(14):
            photo(root / "my_photos" / "labelled" / name / f"{i}.png", colours[number])
    for i in range(40):
        photo(root / "my_photos" / "new" / f"{i}.png", colours[i % 4])
    photo(root / "more_photos" / "a.png", colours[0])
    photo(root / "one.jpg", colours[1])
    rows = ["index,label,predicted,score,top1", "0,mug,mug,0.1,mug", "1,mouse,unknown,0.9,bike", "2,unknown,unknown,0.8,mug"]
    (root / "theirs.csv").write_text("\n".join(rows) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(sys, "argv", "x DIR -s A -t D --noise pair --steps 2 --log runs/my_run".split())
        assert run_main(load_example("noisy_unida").main) == 0
        patch.setattr(sys, "argv", "x my_photos -s labelled -t new --steps 2 -a small_cnn --log runs/photos".split())
        assert run_main(load_example("noisy_unida").main) == 0
    return root


def shrunk(script, words):
    """The words of the page, and some that make the run short; a later flag wins over an earlier one."""
    words = [word for word in words if word != "--download"]
    if script == "noisy_unida":
        words += "--steps 1 --device cpu -j 0 --no-report --log runs/again --overwrite".split()
        return words + ([] if "DIR" in words else ["-a", "small_cnn"])
    if script == "predict":
        return [word.replace("my_run", "photos") for word in words]
    if script == "benchmark":
        pytest.skip("test_benchmark.py times small things")
    return words + ["--dry-run"] if script in ("compare", "reproduce") else words


@pytest.mark.parametrize("line", commands())
def test_commands_run(line, world, monkeypatch, capfd):
    if line in ELSEWHERE:
        pytest.skip(ELSEWHERE[line])
    monkeypatch.chdir(world)
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(world / "cache"))
    monkeypatch.setenv("SLURM_NNODES", "2")
    words = [word.replace("$SLURM_NNODES", "2") for word in shlex.split(line)]
    if words[0].startswith("PYTHONPATH="):
        words = words[1:]
        try:
            import tllib  # noqa: F401
        except ImportError:
            pytest.skip("tllib is not importable")
    if "torchrun" in words:  # its flags are understood; what it starts is run once, and in test_distributed.py twice
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
        words = ["python", parsed.training_script, *parsed.training_script_args]
    if words[0] == "tllib-ext":
        from tllib_ext.cli.main import main

        more = {"features": ["-a", "small_cnn", "--overwrite"], "audit": ["-a", "small_cnn"]}.get(words[1], [])
        assert main([word for word in words[1:] if word != "--download"] + more) == 0, capfd.readouterr().err
        return
    assert words[0] == "python", f"do not know how to run: {line}"
    if words[1] == "-m":
        monkeypatch.setattr(sys, "argv", words[2:])
        try:
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            assert not stop.code, capfd.readouterr().err
        return
    from tllib_ext.cli.parser import run_main

    script = re.fullmatch(r"examples/(\w+)\.py", words[1]).group(1)
    monkeypatch.setattr(sys, "argv", [words[1], *shrunk(script, words[2:])])
    assert run_main(load_example(script).main) == 0, capfd.readouterr().err


# --- Python -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page, code", [pytest.param(*block, id=f"{block[0]}-{i}") for i, block in enumerate(blocks("python"))])
def test_python_blocks_run(page, code, world, monkeypatch):
    if page.name == "CONTRIBUTING.md":
        pytest.skip("test_new_method.py follows it")
    if "cleanlab" in code:
        pytest.importorskip("cleanlab")
    monkeypatch.chdir(world)
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 20
    features = (np.eye(20)[labels] + 0.1 * rng.normal(size=(400, 20))).astype(np.float32)
    code = shortened(code.replace("runs/my_run", "runs/photos"))
    exec(compile(code, str(page), "exec"), {"features": features, "new_features": features, "labels": labels})
