"""The report's page with 100,000 words, in a real browser.

Invented words in 320 clusters after 30 reorganizations; how soon the page paints, has its map, is ready with its
charts, finds words and opens a cluster with its past. Times are milliseconds, each the worst of some repetitions.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from coterie_lab.bench.methods import organized
from coterie_lab.explorer.collect import Content, Curves
from coterie_lab.explorer.explorer import Organized
from coterie_lab.explorer.page import build
from coterie_lab.training.moves import History

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
WORDS, REORGANIZATIONS, VISITS = 100_000, 30, 5
LETTERS = "abcdefghijklmnopqrstuvwxyz"
QUERIES = ("a", "th", "ing", "zzz", "qu", "e")

SEARCH = """async (text) => {
  const field = document.querySelector("#search"), start = performance.now();
  field.value = text;
  field.dispatchEvent(new Event("input"));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
OPEN = """async () => {
  const start = performance.now();
  document.querySelectorAll(".tile")[7].click();
  while (!document.querySelector("#detail .events li")) await new Promise((done) => setTimeout(done, 1));
  return performance.now() - start;
}"""
MARKS = {
    "first_paint": "performance.getEntriesByName('first-contentful-paint')[0].startTime",
    "explorer": "performance.getEntriesByName('explorer')[0].startTime",
    "ready": "performance.now()",
}


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser, headless."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ImportError("a browser needs the package playwright: pip install playwright") from error
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise FileNotFoundError("there is no Chromium (on Debian: apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, headless=True, args=list(QUIET))
        yield browser
        browser.close()


def invented(words: int = WORDS) -> Organized:
    """A layer of invented words, most of which moved at first and few in the end."""
    torch.manual_seed(0)
    names: dict[str, None] = {}
    while len(names) < words:
        picks = torch.randint(0, 26, (13,)).tolist()
        names["".join(LETTERS[pick] for pick in picks[: 3 + picks[12] % 10])] = None
    head = organized(words, 64)
    cluster_of = head.partition.cluster_of.clone()
    history = History(cluster_of)
    movable = cluster_of < head.n_clusters  # not the words that stand alone
    for n in range(1, REORGANIZATIONS + 1):
        moving = (movable & (torch.rand(words) < max(0.03, 0.9 * 0.88**n))).nonzero().squeeze(1)
        cluster_of[moving] = cluster_of[moving[torch.randperm(moving.numel())]]
        history.add(1000 * n, cluster_of)
    head.partition.assign_(cluster_of)
    return Organized(head, list(names), head.counts, history.moves)


def measured() -> dict[str, Any]:
    """The page's size, how long it takes to build, and how soon it is there."""
    model = invented()
    start = time.perf_counter()
    page = build([Content("invented words", "self-organized", Curves(), organized=model)])
    built = time.perf_counter() - start
    found: dict[str, list[float]] = {name: [] for name in (*MARKS, "search", "open_cluster")}
    with tempfile.TemporaryDirectory() as folder, browsing() as browser:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        for _ in range(VISITS):
            tab = browser.new_page(viewport={"width": 1300, "height": 900})
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-ready=yes]")
            for name, mark in MARKS.items():
                found[name].append(tab.evaluate(mark))
            found["search"] += [tab.evaluate(SEARCH, query) for query in QUERIES]
            found["open_cluster"].append(tab.evaluate(OPEN))
            tab.close()
        version = browser.version
    return {
        "chromium": version,
        "words": len(model.words),
        "clusters": model.head.n_clusters,
        "moves": sum(move.words.size for move in model.moves[1:]),
        "page_mb": len(page) / 1e6,
        "building_seconds": built,
        "milliseconds": {
            name: {"median": statistics.median(times), "worst": max(times), "n": len(times)}
            for name, times in found.items()
        },
    }
