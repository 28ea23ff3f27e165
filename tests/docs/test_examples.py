"""The examples run, for a few updates."""

import runpy

import pytest

from tests.docs.pages import ROOT

TEXT = "def area(width, height): return width * height\nprint(area(3, 4))\n" * 30


@pytest.mark.parametrize(
    ("example", "given", "says"),
    [
        ("language_model", (TEXT,), "14 words"),
        ("recommender", (), "recall@20"),
        ("from_adaptive", (TEXT,), "SelfOrganizedSoftmax: perplexity"),
    ],
)
def test_an_example_runs(example: str, given: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["main"](*given, updates=4)
    assert says in capsys.readouterr().out


def test_every_example_is_run() -> None:
    parameters = test_an_example_runs.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {example for example, *_ in parameters}
