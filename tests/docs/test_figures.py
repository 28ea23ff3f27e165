"""Every figure on a page is quoted from the report that its run wrote.

A comment behind a block names the source of its numbers: of a table column by column, of a text one by one.

    <!-- figures docs/results/text8/report.json | mean(rows[{0}].perplexity) | median(rows[{0}].seconds) -->
    <!-- figures docs/benchmarks/x/bench.json: 0.52 = rows[full; 131072].step; 7.2 = rows[a].step / rows[b].step -->

A path goes into a report by its keys, and into a list by values that one entry must have; {0} is what the
first cell of a row says, or a comment in it: `every 250 updates <!-- k-250 -->`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import pytest

from tests.docs.pages import FENCE, PAGES, ROOT, name

MARKER = re.compile(r"<!-- figures (\S+?)(:| \|) (.*?)-->", re.DOTALL)
FUNCTIONS = {"mean": mean, "median": median, "deviation": stdev}
PATH = re.compile(rf"\b(?!(?:{'|'.join(FUNCTIONS)})\b)[a-z]\w*(?:\.[A-Za-z]\w*|\[[^\]]*\])*")
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
# What only a run can know: a number with a point, or one that counts times, percents or time.
FIGURE = re.compile(NUMBER.pattern + r"(?=×|%| times| ms| seconds| MiB| GB)|(?<![\w.])\d[\d,]*\.\d+")
NO_FIGURE = re.compile(
    r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|\b(?:Python|PyTorch|torch|Triton|Apache|arXiv)[ :-][\d.]+(?: to [\d.]+)?",
    re.DOTALL,
)


def values_of(entry: Any) -> Iterator[str]:
    """All that an entry of a list may be known by."""
    for value in entry.values() if isinstance(entry, dict) else ():
        if isinstance(value, dict):
            yield from values_of(value)
        elif not isinstance(value, list):
            yield str(value).replace(",", "")


def look_up(report: Any, path: str) -> Any:
    """What stands in a report under `rows[full; 131072].step`."""
    for key in re.findall(r"\w+|\[[^\]]*\]", path):
        key = key.strip("[]")
        if isinstance(report, dict):
            report = report[key]
        elif re.fullmatch(r"-?\d{1,2}", key):
            report = report[int(key)]
        else:
            wanted = set(re.split(r"; | × ", key.replace(",", "")))
            found = [entry for entry in report if wanted <= set(values_of(entry))]
            assert len(found) == 1, f"{len(found)} entries have {key!r}; expected one"
            report = found[0]
    return report


def compute(report: Any, expression: str) -> float:
    """A number of a report, or what several come to: `mean(rows[full].perplexity)`."""
    paths = PATH.findall(expression)
    code = PATH.sub(lambda _: "found.pop(0)", expression)
    return float(eval(code, {"found": [look_up(report, path) for path in paths], **FUNCTIONS}))


def cells(line: str) -> list[str]:
    return [cell.strip().replace("*", "") for cell in line.strip().strip("|").split("|")]


def quotes(block: str, marker: re.Match[str]) -> Iterator[tuple[str, str]]:
    """The printed numbers that a marker speaks of, and what they should be."""
    if marker[2] == ":":
        for quote in re.split(r";\s+(?=[\d.,]+ = )", marker[3].strip()):
            printed, expression = quote.split(" = ", 1)
            assert printed in NUMBER.findall(NO_FIGURE.sub("", block)), f"{printed} is not on the page"
            yield printed, expression
        return
    for line in block.strip().splitlines()[2:]:
        first, *others = cells(line)
        first = re.sub(r".*<!-- | -->", "", first)
        for cell, expressions in zip(others, marker[3].split("|"), strict=True):
            for printed, expression in zip(NUMBER.findall(cell), expressions.split("±"), strict=False):
                if expression.strip():
                    yield printed, expression.strip().replace("{0}", first)


def agree(printed: str, value: float) -> bool:
    """Whether a number is printed as it is, to its last digit."""
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return abs(float(printed.replace(",", "")) - abs(value)) <= half * (1 + 1e-9)


def wrong(page: str) -> Iterator[str]:
    """What is wrong with the figures of a page."""
    # A block and the comments behind it: what else is between blank lines.
    for part in re.split(r"\n\s*\n(?!<!-- figures)", FENCE.sub("", page)):
        markers = list(MARKER.finditer(part))
        block = part[: markers[0].start()] if markers else part
        sourced = set()
        for marker in markers:
            report = json.loads((ROOT / marker[1]).read_text(encoding="utf-8"))
            for printed, expression in quotes(block, marker):
                sourced.add(printed)
                value = compute(report, expression)
                if not agree(printed, value):
                    yield f"{printed} should be {value:.6g}: {expression} in {marker[1]}"
        for figure in FIGURE.findall(NO_FIGURE.sub("", block)):
            if figure not in sourced:
                yield f"{figure} has no source: {block.strip()[:70]!r}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_figure_is_quoted_from_a_report(page: Path) -> None:
    found = list(wrong(page.read_text(encoding="utf-8")))
    assert not found, "\n".join(found)


def test_figures_that_were_changed_or_invented_are_found() -> None:
    source = "<!-- figures docs/results/demo.json: {} = grammar_perplexity -->"
    assert not list(wrong("The grammar has 169.7.\n\n" + source.format("169.7")))
    assert "169.8 should be 169.654" in next(wrong("The grammar has 169.8.\n\n" + source.format("169.8")))
    assert "3 has no source" in next(wrong("It is 3× as fast, at `0.1`."))
