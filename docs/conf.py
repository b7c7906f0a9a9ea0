"""How Sphinx builds the documentation: ``make docs`` writes ``build/docs/index.html``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

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

HANDLES = {f"oncebox.{name}" for name in ("Sandbox", "Job", "AsyncSandbox", "AsyncJob")}
"""Made by other methods, never by a caller."""


def shown_signature(
    _app: object, _what: str, name: str, _item: object, _options: object, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """What a caller may pass: no parameters that are the SDK's own."""
    if name in HANDLES:
        return "", None
    if signature is not None and "_hooks" in signature:
        return re.sub(r", _hooks: [^,)]*", "", signature), returned
    return None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", shown_signature)
