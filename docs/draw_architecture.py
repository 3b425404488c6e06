"""Draw the import graph of the package for docs/architecture.md.

    python docs/draw_architecture.py            write the edge list into the page and draw images/architecture.svg
    python docs/draw_architecture.py --check    exit 1 if the page's edge list differs from the package

Imports inside functions and under ``TYPE_CHECKING`` count, and so do module names in strings (``"tllib_ext.a.b:Name"``),
by which registries import late.
"""

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tllib_ext"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
#: the edge list stands between these marks of the page
BEGIN, END = "<!-- import graph -->\n", "<!-- end -->\n"
_NAME = re.compile(rf"{PACKAGE}(\.\w+)+(:\w+)?")
Graph = Dict[str, Set[str]]


def module_imports(root: Path = ROOT) -> Graph:
    """Full name of every module of the package -> full names of the package's modules that it imports."""
    files = {}
    for file in sorted((root / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {name: set(_targets(name, file, set(files))) - {name} for name, file in files.items()}


def _targets(name: str, file: Path, modules: Set[str]) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        names: List[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            names = [node.value.partition(":")[0]]
        for target in names:
            # the longest prefix that is a module; the rest is a name in it
            while target and target not in modules:
                target = target.rpartition(".")[0]
            # "from tllib_ext import __version__" needs nothing but the file that is loaded anyway
            if target and not (target == PACKAGE and names == [f"{PACKAGE}.__version__"]):
                yield target


def between_children(modules: Graph, package: str = PACKAGE) -> Graph:
    """The graph between the direct children of ``package``: sub-packages as one node, modules, and the package's own file.

    Names are relative to ``package``; its ``__init__.py`` is ``"__init__"``.
    """

    def child(name: str) -> str:
        return name[len(package) + 1 :].partition(".")[0] or "__init__"

    inside = {name for name in modules if name == package or name.startswith(package + ".")}
    graph: Graph = {child(name): set() for name in inside}
    for name in inside:
        graph[child(name)] |= {child(target) for target in modules[name] if target in inside} - {child(name)}
    return graph


def packages(modules: Graph) -> List[str]:
    """Every package, the whole one first."""
    return sorted({name.rpartition(".")[0] for name in modules} - {""}, key=lambda name: (name.count("."), name))


def find_cycle(graph: Graph) -> List[str]:
    """A cycle as a list of nodes, the first repeated at the end; empty if there is none.

    Examples::

        >>> find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
        ['a', 'b', 'c', 'a']
        >>> find_cycle({"a": {"b"}, "b": set()})
        []
    """
    done: Set[str] = set()

    def visit(node: str, path: Tuple[str, ...]) -> List[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in done:
            for target in sorted(graph.get(node, ())):
                cycle = visit(target, (*path, node))
                if cycle:
                    return cycle
            done.add(node)
        return []

    return next(filter(None, (visit(node, ()) for node in sorted(graph))), [])


def package_graph(root: Path = ROOT) -> Graph:
    """The graph of the picture: packages and top-level modules, without the package's own file, which imports lazily."""
    graph = between_children(module_imports(root))
    for name in ("__init__", "__main__"):
        graph.pop(name, None)
    return {name: targets - {"__init__"} for name, targets in sorted(graph.items())}


def edge_list(graph: Graph) -> str:
    """The graph as text, one line per package."""
    rows = [f"{name} -> {', '.join(sorted(targets)) or '(nothing)'}\n" for name, targets in sorted(graph.items())]
    return "```text\n" + "".join(rows) + "```\n"


def levels(graph: Graph) -> Dict[str, int]:
    """Length of the longest chain of imports below each node; the graph has no cycle."""
    found: Dict[str, int] = {}

    def level(node: str) -> int:
        if node not in found:
            found[node] = max((level(target) + 1 for target in graph[node]), default=0)
        return found[node]

    for node in graph:
        level(node)
    return found


def draw(graph: Graph, file: Path) -> None:
    """Draw the graph in levels, imports downwards; edges that a longer chain implies are left out."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": PACKAGE, "svg.fonttype": "path"})
    import matplotlib.pyplot as plt

    direct = {name: targets - set().union(*(_reachable(graph, target) for target in targets)) for name, targets in graph.items()}
    place = _positions(graph, direct)
    figure, axes = plt.subplots(figsize=(9, 0.8 * max(y for _, y in place.values()) + 1.2))
    boxes = {}
    for name, (x, y) in place.items():
        package = (ROOT / PACKAGE / name).is_dir()
        style = {"boxstyle": "round,pad=0.35", "fc": "#dce9f7" if package else "#f4f1e6", "ec": "#44546a", "lw": 0.8}
        text = axes.text(x, y, name + ("/" if package else ".py"), ha="center", va="center", fontsize=9, bbox=style, zorder=3)
        boxes[name] = text.get_bbox_patch()
    for name, targets in direct.items():
        for target in sorted(targets):
            arrow = {"arrowstyle": "-|>", "color": "#7a869a", "lw": 0.9, "shrinkA": 0, "shrinkB": 1}
            axes.annotate("", place[target], place[name], arrowprops={**arrow, "patchA": boxes[name], "patchB": boxes[target]})
    axes.set(xlim=(0, 1), ylim=(-0.5, max(y for _, y in place.values()) + 0.5))
    axes.axis("off")
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _positions(graph: Graph, direct: Graph) -> Dict[str, Tuple[float, int]]:
    """Rows by level; within a row, nodes stand near the mean position of their neighbours."""
    height = levels(graph)
    rows = [sorted(name for name in graph if height[name] == row) for row in range(max(height.values()) + 1)]
    near = {name: direct[name] | {other for other in graph if name in direct[other]} for name in graph}
    place: Dict[str, Tuple[float, int]] = {}
    for _ in range(20):
        for y, row in enumerate(rows):
            mean = {name: [place[other][0] for other in near[name] if other in place] for name in row}
            row.sort(key=lambda name: (sum(mean[name]) / len(mean[name]) if mean[name] else 0.5, name))
            place.update({name: ((i + 0.5) / len(row), y) for i, name in enumerate(row)})
    return place


def _reachable(graph: Graph, node: str) -> Set[str]:
    """What a node imports, directly or through others."""
    return graph[node].union(*(_reachable(graph, target) for target in graph[node]))


def main() -> int:
    """Write the edge list and the picture, or with ``--check`` compare the edge list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not up to date")
    args = parser.parse_args()
    graph, text = package_graph(), PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    new = head + BEGIN + edge_list(graph) + END + rest.partition(END)[2]
    if args.check:
        if new != text:
            print(f"{PAGE.relative_to(ROOT)} is not up to date: python docs/draw_architecture.py")
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    draw(graph, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
