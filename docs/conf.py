"""Sphinx configuration: MyST Markdown, autodoc of the package, a plain theme."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

project = "tllib_ext"
author = "the tllib_ext authors"
copyright = "2026, the tllib_ext authors"  # noqa: A001 (Sphinx's name)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"  # types beside what is explained, no bare lists of names
napoleon_custom_sections = ["Inputs", "Outputs", "Shape"]  # tllib's house style
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "tllib_ext"
html_static_path = ["_static"]
exclude_patterns = ["_build", "results/**/records"]
suppress_warnings = ["myst.header", "ref.python"]
