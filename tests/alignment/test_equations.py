"""Every equation of the paper stands once in the package, and the methods are written with the modules that hold them."""

import ast
import re

import pytest
from conftest import ROOT

PACKAGE = ROOT / "tllib_ext"
#: equation of the paper -> the module that defines it, and the definition whose docstring says so
PLACES = {
    8: ("selection", "joint_loss"), 9: ("selection", "small_loss_mask"), 10: ("selection", "SmallLossSelection"),
    11: ("separation", "TargetSeparation"), 12: ("separation", "TargetSeparation"), 13: ("minimax", "HeadMinimax"),
    14: ("minimax", "HeadMinimax"), 15: ("minimax", "unknown_by_divergence"),
}  # fmt: skip


def tags():
    """Number of the equation -> files that say ``eq. N``, or a range of numbers with N in it."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for first, last in re.findall(r"\beqs?\. ?(\d+)(?:[-–](\d+))?", file.read_text(encoding="utf-8"), re.I):
            for number in range(int(first), int(last or first) + 1):
                found.setdefault(number, []).append(file.relative_to(PACKAGE).as_posix())
    return found


def test_each_equation_is_tagged_once():
    found = tags()
    assert {number: found.get(number) for number in PLACES} == {n: [f"alignment/{file}.py"] for n, (file, _) in PLACES.items()}


@pytest.mark.parametrize("number", PLACES)
def test_the_tag_is_in_the_definition(number):
    file, name = PLACES[number]
    tree = ast.parse((PACKAGE / "alignment" / f"{file}.py").read_text(encoding="utf-8"))
    (node,) = (node for node in tree.body if getattr(node, "name", None) == name)
    assert f"(eq. {number})" in ast.get_docstring(node)


#: what the equations are computed with
ARITHMETIC = {"softmax", "log_softmax", "log", "exp", "logsumexp", "cross_entropy", "kl_div", "abs", "clamp", "argsort", "sort",
              "topk", "softplus", "pow"}  # fmt: skip


@pytest.mark.parametrize("file", ["methods/divergence.py", "methods/credo.py"])
def test_the_methods_compute_no_equation(file):
    text = (PACKAGE / file).read_text(encoding="utf-8")
    tree = ast.parse(text)
    calls = {node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
             and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "math")}  # fmt: skip
    assert not calls & ARITHMETIC
    assert "torch.nn.functional" not in text
    compared = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert not [text for text in compared if "delta" in text and "hp.delta" not in text and "self.delta not in" not in text]


def test_the_paper_s_steps_are_named_methods():
    from tllib_ext.methods.divergence import Divergence

    assert {"step_a1", "step_a2", "step_b", "step_c"} <= set(vars(Divergence))
