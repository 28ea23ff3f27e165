"""The house: who may import what, and which borders private names may not cross."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
LIBRARY = sorted((SRC / "coterie").rglob("*.py"))
FILES = [*LIBRARY, *sorted((SRC / "coterie_lab").rglob("*.py"))]


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


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def defined(path):
    """Private names that a file defines: functions, classes, variables, attributes."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def used(path):
    """Private names that a file takes from elsewhere: (name, line)."""
    mine, tuples = set(defined(path)), {"_asdict", "_fields", "_replace"}
    found = [
        node
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in mine | tuples
    ]
    inner = [node.value for node in found]  # of a._b._c only _c counts
    yield from ((node.attr, node.lineno) for node in found if node not in inner)
    for module, line in imports(path):
        yield from ((part, line) for part in module.split(".") if is_private(part))


OURS = {name for path in FILES for name in defined(path)}


def test_the_library_never_imports_the_laboratory():
    assert not [
        f"{path}:{line}" for path in LIBRARY for name, line in imports(path) if name.split(".")[0] == "coterie_lab"
    ]


def test_the_library_has_few_rooms_at_its_top():
    top = {path.stem for path in (SRC / "coterie").glob("*.py")} - {"__init__"}
    assert len(top) <= 10, sorted(top)


def test_private_names_stay_in_their_file():
    assert not [f"{path}:{line} {name}" for path in FILES for name, line in used(path) if name in OURS]


def test_private_names_of_others_are_few_and_explained():
    found = {(name, path, line) for path in FILES for name, line in used(path) if name not in OURS}
    assert len({name for name, _, _ in found}) < 10
    for name, path, line in found:
        around = path.read_text().splitlines()[max(0, line - 4) : line]
        assert any("#" in text for text in around), f"{path}:{line} does not say why it takes {name}"


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
