"""The package as a whole: version, size, type annotations, and a wheel that needs no file outside of itself."""

import ast
import os
import re
import shutil
import statistics
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

import tllib_ext

FILES = sorted((ROOT / "tllib_ext").rglob("*.py"))
#: uses of ``Any`` in annotations, ``**kwargs: Any`` not counted
ANY_LIMIT = 60


def run(*words, **options):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, **options)
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_version_is_in_one_place_and_in_the_changelog():
    assert run(sys.executable, "setup.py", "--version", cwd=ROOT).strip().endswith(tllib_ext.__version__)
    assert tllib_ext.__version__ not in (ROOT / "setup.py").read_text()
    dated = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert dated[0] == tllib_ext.__version__


def test_the_extra_tllib_is_its_public_git_address(tmp_path):
    from packaging.requirements import Requirement

    from tllib_ext.compat import REMEDIES

    run(sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path, cwd=ROOT)
    text = (tmp_path / "tllib_ext.egg-info" / "requires.txt").read_text()
    (line,) = re.search(r"^\[tllib\]\n((?:[^\[\n].*\n?)+)", text, re.M)[1].split("\n")[:1]
    extra = Requirement(line)
    assert extra.name == "tllib" and extra.url == "git+https://github.com/thuml/Transfer-Learning-Library"
    assert extra.url in REMEDIES["tllib"]


def test_an_editable_installation_is_a_path_that_editors_follow(tmp_path):
    """mypy and editors read paths in ``.pth`` files; an import hook they do not run."""
    pytest.importorskip("setuptools")
    copy = tmp_path / "copy"
    (copy / "tllib_ext").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "tllib_ext/__init__.py", "tllib_ext/py.typed"):
        shutil.copy(ROOT / name, copy / name)
    code = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    wheel = tmp_path / run(sys.executable, "-c", code, cwd=copy).split()[-1]
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "finder" in name] == []
        (path,) = [archive.read(name).decode().strip() for name in archive.namelist() if name.endswith(".pth")]
    assert os.path.realpath(path) == os.path.realpath(copy)


def lines_of_files():
    return {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}


@pytest.mark.xfail(strict=True, reason="the package has more lines than it should")
def test_size_of_the_package():
    assert sum(lines_of_files().values()) < 13_000


def test_size_of_files():
    lines = lines_of_files()
    assert max(lines.values()) <= 300, max(lines, key=lines.get)
    assert 80 <= statistics.median(count for file, count in lines.items() if file.name != "__init__.py") <= 150
    assert not [file for file in (ROOT / "tllib_ext").rglob("*") if file.suffix in (".c", ".h", ".cpp", ".so")]


def count_any(code):
    """Uses of ``Any`` in a module, in quoted annotations too; those of ``*args: Any`` and ``**kwargs: Any`` not counted."""
    tree = ast.parse(code)
    free = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            free |= {id(inner) for rest in (node.vararg, node.kwarg) if rest for inner in ast.walk(rest)}
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any" and id(node) not in free]
    quoted = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[\w.\[\], |]*\bAny\b[\w.\[\], |]*", node.value)
    ]
    return len(used) + len([node for node in quoted if "[" in node.value or node.value == "Any"])


def test_counting_any():
    code = (
        'from typing import Any\nX = Dict[str, Any]\ndef f(a: Any, b: "List[Any]", *c: Any, **d: Any) -> Any:\n    "Any text"\n'
    )
    assert count_any(code) == 4


def test_few_annotations_are_any():
    counts = {str(file.relative_to(ROOT)): count_any(file.read_text(encoding="utf-8")) for file in FILES}
    assert sum(counts.values()) <= ANY_LIMIT, sorted((count, name) for name, count in counts.items() if count)[::-1]


def test_data_files_are_declared():
    """Every file of the package that is not Python is matched by a pattern of setup.py."""
    patterns = re.search(r'package_data=\{\s*"tllib_ext": \[(.*?)\]', (ROOT / "setup.py").read_text(), re.S)[1]
    declared = {file for pattern in re.findall(r'"(.+?)"', patterns) for file in (ROOT / "tllib_ext").glob(pattern)}
    others = {file for file in (ROOT / "tllib_ext").rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert others <= declared and ROOT / "tllib_ext" / "py.typed" in declared


@pytest.mark.slow
def test_a_wheel_runs_in_an_empty_folder(tmp_path):
    """Built from a copy, installed beside the dependencies alone, run where nothing of the repository is."""
    source, empty, venv = tmp_path / "source", tmp_path / "empty", tmp_path / "venv"
    shutil.copytree(ROOT / "tllib_ext", source / "tllib_ext", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source)
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    packages = next(venv.glob("lib/python*/site-packages"))
    # Entries of a .pth file are added to the path without their own .pth files, so an editable install is not seen.
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    (wheel,) = tmp_path.glob("tllib_ext-*.whl")
    run(sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "-q", "--no-deps", "--no-index", wheel)
    empty.mkdir()
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TLLIB", "COV"))}
    options = {"cwd": empty, "env": {**plain, "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}}
    where = run(venv / "bin" / "python", "-c", "import tllib_ext; print(tllib_ext.__file__)", **options)
    assert where.startswith(str(packages))
    run(venv / "bin" / "tllib-ext", "train", "--steps", "3", "--log", "run", "--device", "cpu", **options)
    assert {"results.json", "predictions.csv", "model.safetensors", "report.html"} <= {p.name for p in (empty / "run").iterdir()}
    assert "divergence" in run(venv / "bin" / "tllib-ext", "list", **options)
