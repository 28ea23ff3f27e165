"""The pages build as a site, strictly, and neither they nor the README's links lead astray."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name

LOADED = (
    r"""<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=["'](?:https?:)?//|url\(["']?(?:https?:)?//|@import"""
)


def test_the_site_builds_without_a_warning_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "docs", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]
    assert len(pages) > 20
    assert not [page for page in pages if re.search(LOADED, page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_walk_names_files_that_are_there() -> None:
    named = re.findall(r"`([\w/.]+(?:\.py|\.json|/))`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    homes = [ROOT, ROOT / "src/coterie", ROOT / "src/coterie_lab", ROOT / "src/coterie_lab/tasks/language"]
    assert len(named) > 30
    assert not [path for path in named if not any((home / path).exists() for home in homes)]
