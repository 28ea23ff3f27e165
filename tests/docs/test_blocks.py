"""Every block of code in the README and on the pages runs as it is printed."""

import ast
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.core import TyperCommand
from typer.testing import CliRunner

from coterie_lab.cli import app
from tests.docs.pages import FENCE, PAGES, ROOT, name

PYTHON = {page: [code for language, code in FENCE.findall(page.read_text()) if language == "python"] for page in PAGES}
SHELL = {page: [code for language, code in FENCE.findall(page.read_text()) if not language] for page in PAGES}
# A block needs a GPU if it says so, or has its device from one that does.
ON_GPU = re.compile(r"\b(cuda|device)\b")
# What a reader's machine has: nothing of ours to check.
OTHERS = {"cd", "git", "export", "torchrun"}


@pytest.mark.parametrize("page", [page for page, blocks in PYTHON.items() if blocks], ids=name)
def test_python_runs_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page follow each other, as a reader pastes them."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in PYTHON[page]:
        code = compile(block, name(page), "exec")
        if ON_GPU.search(block) and not torch.cuda.is_available():
            check_names(ast.parse(block), names)
        else:
            exec(code, names)


def check_names(block: ast.AST, names: dict[str, Any]) -> None:
    """Imports what a block imports, and looks up what it asks of names that are known by then."""
    own = {node.id for node in ast.walk(block) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(block):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.unparse(node), "import", "exec"), names)
    for node in ast.walk(block):
        if isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            first = chain.partition(".")[0]
            if re.fullmatch(r"[\w.]+", chain) and first in names and first not in own:
                eval(chain, names)


@pytest.mark.parametrize("page", [page for page, blocks in SHELL.items() if blocks], ids=name)
def test_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own commands are parsed by the real command line, which then does nothing."""
    monkeypatch.setattr(TyperCommand, "invoke", lambda command, context: None)
    for line in "".join(SHELL[page]).replace("\\\n", "").splitlines():
        program, *given = shlex.split(line, comments=True) or ["cd"]
        if program == "coterie":
            result = CliRunner().invoke(app, given)
            assert result.exit_code == 0, f"{line}\n{result.output}"
        elif program == "make":
            assert re.search(rf"^{given[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif program == "pip":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            for package, extra in re.findall(r"([\w-]+)(?:\[(\w+)\])?", given[-1]):
                assert package == project["name"], line
                assert extra in ("", *project["optional-dependencies"]), line
        elif program == "python" and given[0] == "-m":
            assert importlib.util.find_spec(given[1]), line
        elif program == "python":
            assert (ROOT / given[0]).exists(), line
        else:
            assert program in OTHERS or "=" in program, line
