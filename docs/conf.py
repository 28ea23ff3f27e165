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
smartquotes = False

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


def as_restructured_text(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings say `name: what it is`, which becomes a list of parameters, and indent examples by four."""
    described = obj.__init__ if what == "class" else obj
    parameters = list(inspect.signature(described).parameters) if what in ("class", "function", "method") else []
    entry = re.compile(rf"(?:^|(?<=[.;] ))({'|'.join(parameters) or '$'}): ")
    found, listed = [], False
    for line in lines:
        line = line.replace("**", r"\*\*")
        if entry.match(line):
            found += ["", *entry.sub(r"\n:param \1: ", line).strip().splitlines()]
            listed = True
        elif listed and line.startswith("    "):
            found[-1] += " " + line.strip()
        else:
            if line.startswith("    ") and found and not found[-1]:
                found += ["::", ""]
            found.append(line)
            listed = False
    lines[:] = found


def setup(app) -> None:
    app.connect("autodoc-process-docstring", as_restructured_text)
