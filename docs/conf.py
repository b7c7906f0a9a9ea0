"""How Sphinx builds the documentation: ``make docs`` writes ``build/docs/index.html``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import service

project = "Oncebox"
author = "The Oncebox authors"
release = service.__version__
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["build"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Pages of others may come and go; what is there is listed.
suppress_warnings = ["toc.empty_glob"]

html_theme = "furo"
html_title = f"Oncebox {release}"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
