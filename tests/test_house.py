"""The house: who may import what, and which borders private names may not cross."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
LIBRARY = sorted((SRC / "coterie").rglob("*.py"))


@cache
def nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path):
    """Modules, or names of modules, that a file imports anywhere, and the line."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_the_library_never_imports_the_laboratory():
    assert not [
        f"{path}:{line}" for path in LIBRARY for name, line in imports(path) if name.split(".")[0] == "coterie_lab"
    ]


def loaded_by(program):
    """Top-level modules that a fresh interpreter has loaded after a program, beyond its own and the standard ones."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    program = f"import sys; before = set(sys.modules)\n{program}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**environment, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    return {name.split(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)


def test_importing_the_library_loads_nothing():
    assert loaded_by("import coterie; dir(coterie); coterie.__version__") == {"coterie"}


def test_the_library_loads_torch_and_numpy_and_what_they_need():
    plain = loaded_by("import torch, numpy")
    assert "triton" not in plain
    assert loaded_by("import torch, numpy, coterie; [getattr(coterie, name) for name in coterie.__all__]") == {
        *plain,
        "coterie",
    }
