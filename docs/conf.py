"""Sphinx configuration: MyST Markdown, autodoc of the package, a plain theme, equations without scripts or a network."""

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tllib_ext import __version__  # noqa: E402

project = "tllib_ext"
version = release = __version__
author = "the tllib_ext authors"
copyright = "2026, the tllib_ext authors"  # noqa: A001 (Sphinx's name)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_prompt_text = ">>> "
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"  # types only of arguments that the docstring explains
napoleon_custom_sections = ["Inputs", "Outputs", "Shape"]  # tllib's house style
autodoc_member_order = "bysource"
html_theme = "furo"
html_math_renderer = "mathml"  # drawn by the browser itself
html_title = "tllib_ext"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
exclude_patterns = ["_build", "results/**/records"]
suppress_warnings = ["myst.header", "ref.python"]


MATHML = "http://www.w3.org/1998/Math/MathML"
ElementTree.register_namespace("", MATHML)


def _mathml(node: nodes.Node, text: str, display: str) -> str:
    for other, known in ((r"\arg", r"\operatorname{arg}"), ("{aligned}", "{split}")):
        text = text.replace(other, known)
    drawn = convert(text, display=display)
    if "\\" in drawn or ">&<" in drawn:
        logging.getLogger(__name__).warning("cannot draw %s", text, location=node)  # an error under -W
        return drawn
    tree = ElementTree.fromstring(drawn)
    for over in tree.iter(f"{{{MATHML}}}mover"):
        if over[1].text == "\u2015":  # \overline: without a mathematical font browsers draw too short a dash
            over.tag = f"{{{MATHML}}}mrow"
            over.set("style", "border-top: 1px solid; padding-top: 1px")
            over.remove(over[1])
    return ElementTree.tostring(tree, encoding="unicode")


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(node, node.astext(), "inline"))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    text = node.astext().strip()
    if r"\begin" not in text and ("&" in text or r"\\" in text):  # as Sphinx does for LaTeX
        text = rf"\begin{{split}}{text}\end{{split}}"
    translator.body.append(f'<div class="math" style="overflow-x: auto">{_mathml(node, text, "block")}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
