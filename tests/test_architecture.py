"""Imports point downwards: no cycle between packages or modules, no edge that the table below does not list."""

import subprocess
import sys

import pytest
from conftest import ROOT
from draw_architecture import BEGIN, END, PAGE, between_children, edge_list, find_cycle, module_imports, package_graph, packages

MODULES = module_imports()
#: what every package may import
COMMON = {"errors", "registry", "compat", "typing", "split", "images", "columns"}
#: leaf modules, below every package
LEAVES = {
    "errors": set(),
    "typing": set(),
    "columns": {"errors"},
    "distributed": set(),
    "registry": {"errors", "typing"},
    "compat": {"errors", "registry", "typing"},
    "split": {"errors", "typing"},
    "images": {"compat", "errors", "typing"},
    "streams": set(),
    "io": {"errors", "typing", "streams"},
}
PACKAGES = {
    "alignment": {"modules", "distributed"},
    "modules": {"distributed"},
    "labels": {"io"},
    "target": {"io"},
    "vision": {"io"},
    "evaluation": {"io"},
    "methods": {"alignment", "modules", "labels", "target", "evaluation", "distributed"},
    "training": {"methods", "vision", "evaluation", "labels", "target", "modules", "distributed", "io"},
    "estimator": {"training", "methods", "vision", "evaluation", "labels", "target", "modules", "distributed", "io"},
    "report": {"evaluation", "io"},
    "experiments": {"training", "report", "methods", "vision", "evaluation", "io"},
    "tllib": {"report", "methods", "labels", "target", "vision", "evaluation", "modules", "io"},
}
#: the top: may import anything below it
TOP = ["api", "cli"]


def allowed():
    """Package or top-level module -> what it may import."""
    table = {**LEAVES, **{name: targets | COMMON for name, targets in PACKAGES.items()}}
    for name in TOP:
        table[name] = set(table)
    return table


def forbidden(graph, table):
    """Edges of the graph that the table does not list."""
    return sorted(f"{name} -> {target}" for name, targets in graph.items() for target in targets - table.get(name, set()))


@pytest.mark.parametrize("package", packages(MODULES))
def test_no_cycle(package):
    graph = between_children(MODULES, package)
    if package == "tllib_ext.training":
        graph["config"].discard("resolve")  # the method RunConfig.resolve() is a shorthand for the function there
    assert find_cycle(graph) == []


def test_no_import_against_the_table():
    assert forbidden(package_graph(), allowed()) == []


def test_the_table_itself_has_no_cycle():
    assert find_cycle(allowed()) == []


def test_every_package_is_in_the_table():
    assert set(package_graph()) <= set(allowed())


def test_report_loads_neither_torch_nor_training():
    """Not even through evaluation or another package: a page can be made where PyTorch is not installed."""
    code = (
        "import importlib, pkgutil, sys, tllib_ext.report as package\n"
        "for module in pkgutil.iter_modules(package.__path__, 'tllib_ext.report.'):\n"
        "    importlib.import_module(module.name)\n"
        "print([name for name in ('torch', 'torchvision', 'tllib_ext.training') if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_import_tllib_ext_is_light():
    code = "import sys, tllib_ext; print([name for name in ('torch', 'numpy', 'matplotlib', 'sklearn') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_page_shows_the_real_graph():
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert text == edge_list(package_graph()), "python docs/draw_architecture.py"
    assert (ROOT / "docs" / "images" / "architecture.svg").exists() and "images/architecture.svg" in PAGE.read_text()


@pytest.fixture
def synthetic(tmp_path):
    """``synthetic({"a/b.py": "code"})`` -> the graph of a package with these files."""

    def build(files):
        for name, code in {"__init__.py": "", **files}.items():
            file = tmp_path / "tllib_ext" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / "__init__.py").touch()
            file.write_text(code)
        return module_imports(tmp_path)

    return build


@pytest.mark.parametrize(
    "code",
    [
        "import tllib_ext.b.y",
        "from tllib_ext.b import y",
        "from tllib_ext.b.y import name",
        "from ..b import y",
        "from ..b.y import name",
        "def f():\n    from tllib_ext.b.y import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tllib_ext.b.y",
        "LATE = {'name': 'tllib_ext.b.y:Name'}",
        "import importlib\nimportlib.import_module('tllib_ext.b.y')",
    ],
)
def test_every_kind_of_import_is_seen(synthetic, code):
    modules = synthetic({"a/x.py": code, "b/y.py": "import tllib_ext.a.x"})
    assert find_cycle(between_children(modules)) == ["a", "b", "a"]


def test_a_cycle_inside_a_package_is_found(synthetic):
    modules = synthetic({"a/x.py": "from tllib_ext.a import y", "a/y.py": "from tllib_ext.a.x import name"})
    assert find_cycle(between_children(modules)) == []
    assert find_cycle(between_children(modules, "tllib_ext.a")) == ["x", "y", "x"]


def test_a_name_of_the_package_itself_counts_but_not_its_version(synthetic):
    modules = synthetic({"a.py": "from tllib_ext import __version__", "b.py": "from tllib_ext import train"})
    graph = between_children(modules)
    assert graph["a"] == set() and graph["b"] == {"__init__"}


def test_a_forbidden_edge_is_found():
    assert forbidden({"report": {"io", "training"}, "new": {"io"}}, allowed()) == ["new -> io", "report -> training"]
