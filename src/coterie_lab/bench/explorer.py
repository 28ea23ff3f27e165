"""The report's page with 100,000 words, in a real browser: `python -m coterie_lab.bench.explorer OUT.json`.

Invented words in 320 clusters after 30 reorganisations; how soon the page paints, has its map, is ready with its
charts, finds words and opens a cluster with its past. Times are milliseconds, each the worst of some repetitions.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from coterie import SelfOrganizedSoftmax
from coterie_lab.bench.browser import Visit, browsing
from coterie_lab.bench.methods import zipf_counts
from coterie_lab.explorer.collect import Content
from coterie_lab.explorer.curves import Curves
from coterie_lab.explorer.explorer import Organized
from coterie_lab.explorer.page import build
from coterie_lab.training.environment import describe
from coterie_lab.training.moves import History

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


def organized() -> Organized:
    """A layer of invented words, most of which moved at first and few in the end."""
    generator = torch.Generator().manual_seed(0)
    names: dict[str, None] = {}
    while len(names) < WORDS:
        picks = torch.randint(0, 26, (13,), generator=generator).tolist()
        names["".join(LETTERS[pick] for pick in picks[: 3 + picks[12] % 10])] = None
    counts = zipf_counts(WORDS)
    head = SelfOrganizedSoftmax(64, WORDS, counts, reorganize_every=1)
    assert head.statistic is not None
    head.statistic.total.normal_(generator=generator)
    head.statistic.weight.fill_(1.0)
    cluster_of = head.partition.cluster_of.clone()
    history = History(cluster_of)
    for n in range(1, REORGANIZATIONS + 1):
        moving = (torch.rand(WORDS, generator=generator) < max(0.03, 0.9 * 0.88**n)).nonzero().squeeze(1)
        cluster_of[moving] = cluster_of[moving[torch.randperm(moving.numel(), generator=generator)]]
        history.add(1000 * n, cluster_of)
    head.partition.assign_(cluster_of)
    return Organized(head, list(names), counts, history.moves)


def main() -> None:
    model = organized()
    start = time.perf_counter()
    page = build([Content("invented words", "self-organized", Curves(), organized=model)])
    built = time.perf_counter() - start
    found: dict[str, list[float]] = {"first_paint": [], "explorer": [], "ready": [], "search": [], "open_cluster": []}
    with tempfile.TemporaryDirectory() as folder, browsing() as browser:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        for _ in range(VISITS):
            with Visit(browser, path.as_uri()) as tab:
                paint = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                found["first_paint"].append(paint)
                found["explorer"].append(tab.evaluate("performance.getEntriesByName('explorer')[0].startTime"))
                found["ready"].append(tab.evaluate("performance.now()"))
                found["search"] += [tab.evaluate(SEARCH, query) for query in QUERIES]
                found["open_cluster"].append(tab.evaluate(OPEN))
        version = browser.version
    result = {
        "environment": {**describe(), "command": "python -m coterie_lab.bench.explorer", "chromium": version},
        "words": WORDS,
        "clusters": model.head.n_clusters,
        "moves": sum(move.words.size for move in model.moves[1:]),
        "page_mb": len(page) / 1e6,
        "building_seconds": built,
        "milliseconds": {
            name: {"median": statistics.median(times), "worst": max(times), "n": len(times)}
            for name, times in found.items()
        },
    }
    text = json.dumps(result, indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
