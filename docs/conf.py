"""How Sphinx builds the site (`make docs`). No page asks a network, neither when it is built nor when it is opened."""

import inspect
import re
import sys
from pathlib import Path

import coterie

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Coterie"
copyright = author = "The Coterie authors"
version = release = coterie.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "commands"]
exclude_patterns = ["_ext", "benchmarks/search-*.md"]
myst_heading_anchors = 3
# In docstrings `name` is code.
default_role = "code"

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
nitpicky = True
# Types of torch and of Python have pages elsewhere, which nothing here asks for.
nitpick_ignore_regex = [("py:.*", r"(?!coterie\.).*|coterie\.graphs\.Output")]

html_theme = "furo"
html_title = f"Coterie {release}"
html_copy_source = False
html_show_sphinx = False


def options_as_a_list(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings say `name: what it is`, a line each or several; the site lists them as parameters."""
    if what not in ("class", "method", "function"):
        return
    lines[:] = [line.replace("**", r"\*\*") for line in lines]
    signature = inspect.signature(obj if what != "class" else obj.__init__)
    text = re.sub(r"\n {4,}", " ", "\n".join(lines))
    for parameter in signature.parameters:
        text = re.sub(rf"(?m)(^|(?<=[.;] )){parameter}: ", rf"\n:param {parameter}: ", text)
    lines[:] = text.splitlines()


def setup(app) -> None:
    app.connect("autodoc-process-docstring", options_as_a_list)
