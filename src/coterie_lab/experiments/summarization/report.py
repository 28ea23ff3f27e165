"""The report of the summarization experiment: the paper's Tables 4, 5 and 6, the speed of search, and examples."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie_lab.data.pairs import Pairs
from coterie_lab.experiments import report as reports
from coterie_lab.experiments.comparison import Row
from coterie_lab.experiments.report import Data, find, minutes, records, results, section, spread, table
from coterie_lab.experiments.summarization.speed import Speed
from coterie_lab.experiments.summarization.variants import DUC, GIGAWORD, MINUTES, Variant
from coterie_lab.scoring import rouge
from coterie_lab.scoring.bootstrap import Interval, difference, interval
from coterie_lab.scoring.references import Duc
from coterie_lab.training.run import Run, read_json

MEASURES = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L"}
LEAD = 8  # words of the baseline that copies the beginning
EXAMPLES = 8


def write(
    out: Path, pairs: Pairs, rows: list[Row[Variant]], seeds: list[int], speeds: list[Speed], titles: str,
    duc: Duc | None, duc_titles: str,
) -> Data:  # fmt: skip
    """Reads what the runs wrote, scores it, and writes report.md and report.json.

    `titles`, `duc_titles`: the files in a run's folder that hold its titles for the test, and for DUC's sentences.
    """
    articles, references = pairs.text("test", "article"), pairs.text("test", "title")
    written = {row.name: [_read_titles(path / titles) for path in row.paths] for row in rows}
    scores = {"test": {name: [rouge.full_length(one, references) for one in own] for name, own in written.items()}}
    if duc is not None:
        scores["duc"] = {
            row.name: [rouge.limited_recall(_read_titles(path / duc_titles), duc.references) for path in row.paths]
            for row in rows
        }
    report = {
        "pairs": {
            "path": pairs.path.name, "vocabulary": pairs.n_words, "left_out": pairs.source["left_out"],
            **{name: len(part) for name, part in pairs.parts.items()},
        },
        "seeds": seeds,
        "settings": read_json(Run(rows[0].paths[0]).config)["settings"],  # of the first run
        "rows": [_figures(row, scores) for row in rows],
        "lead": _scored([rouge.full_length([" ".join(line.split()[:LEAD]) for line in articles], references)]),
        "differences": {
            which: {measure: _difference(found["self-organized"], found["full"], measure) for measure in MEASURES}
            for which, found in scores.items()
            if {"self-organized", "full"} <= found.keys()
        },
        "speeds": speeds,
        "examples": _examples(articles, references, {name: own[0] for name, own in written.items()}),
        **reports.origin(rows),
    }  # fmt: skip
    reports.write(out, report, markdown(report))
    return report


def _figures(row: Row[Variant], scores: dict[str, dict[str, list[rouge.Scores]]]) -> Data:
    """What the runs of a variant reached, one number for each seed."""
    found, logs = results(row), [records(path, "train") for path in row.paths]
    return {
        "name": row.name,
        "label": reports.label(row),
        "test": _scored(scores["test"][row.name]),
        "duc": _scored(scores["duc"][row.name]) if "duc" in scores else None,
        "perplexity": [result["best"]["perplexity"] for result in found],  # of the validation titles
        "seconds": [result["training_seconds"] for result in found],
        # Of titles; the median of the log, to exclude the start.
        "words_per_second": [statistics.median(record["words_per_second"] for record in log) for log in logs],
        "published": row.variant.published,
    }


def _read_titles(path: Path) -> list[str]:
    """The titles that a run wrote, one per line; some may be empty."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _scored(runs: Sequence[rouge.Scores]) -> Data:
    """ROUGE of a system's runs on the same items, in percent: the mean of each seed, and the interval of the mean over
    the seeds."""
    return {
        "means": {measure: [100 * float(getattr(run, measure).mean()) for run in runs] for measure in MEASURES},
        "intervals": {measure: _percent(interval(_over_seeds(runs, measure))) for measure in MEASURES},
    }


def _over_seeds(runs: Sequence[rouge.Scores], measure: str) -> rouge.PerItem:
    """Each item's mean over the seeds, (N,)."""
    return np.asarray(np.mean([getattr(run, measure) for run in runs], axis=0))


def _difference(ours: Sequence[rouge.Scores], theirs: Sequence[rouge.Scores], measure: str) -> Interval:
    return _percent(difference(_over_seeds(ours, measure), _over_seeds(theirs, measure)))


def _percent(found: Interval) -> Interval:
    return Interval(*(100 * value for value in found))


def _examples(articles: list[str], references: list[str], titles: dict[str, list[str]]) -> list[dict[str, str]]:
    """Some test items, evenly spaced: the sentence, the reference, and the title of each variant."""
    step = max(1, len(articles) // EXAMPLES)
    return [
        {"sentence": articles[n], "reference": references[n], **{name: found[n] for name, found in titles.items()}}
        for n in range(step // 2, len(articles), step)
    ][:EXAMPLES]


def markdown(report: Data) -> list[str]:
    """The report as Markdown."""
    pairs = report["pairs"]
    lines = [
        "# Sentence summarization: every head in the same trainer",
        "",
        f"{pairs['train']:,} pairs to train on, {pairs['valid']:,} for validation, {pairs['test']:,} for the test; a "
        f"vocabulary of {pairs['vocabulary']:,}; {report['settings']['epochs']} epochs; seed(s) "
        f"{', '.join(map(str, report['seeds']))}. ROUGE in percent; ± is the standard deviation over the seeds, the "
        "interval the 95% bootstrap interval of the mean over the seeds. **Published rows are of systems trained on "
        "other data, the paper's on the 3.8 million pairs of Gigaword: they cannot be compared with the rows above.**",
        *section("Table 4: DUC-2004, recall within 75 bytes", *_rouge(report, "duc", DUC)),
        *section("Table 5: the test, full-length F1", *_rouge(report, "test", GIGAWORD)),
        *section("Table 6: training time", *_times(report)),
        "",
        "Words are those of the titles; their rate is the median of the log, so that compiling and recording at",
        "the start do not count; the minutes are of all training. Speed is against the full softmax.",
    ]
    if report["speeds"]:
        lines += section("Searching on a CPU: beam of 5", *_searches(report["speeds"]))
    lines += section("Examples", "The first seed of each; no choice was made among them.", "")
    labels = {row["name"]: row["label"] for row in report["rows"]}
    for example in report["examples"]:
        lines += [*(f"- *{labels.get(name, name)}*: {text}" for name, text in example.items()), ""]
    return lines


def _rouge(report: Data, which: str, published: dict[str, tuple[float, float, float]]) -> list[str]:
    systems = [(row["label"], row[which]) for row in report["rows"] if row[which]]
    if which == "test":
        systems.insert(0, (f"the sentence's first {LEAD} words", report["lead"]))
    rows = []
    for label, found in systems:
        spans = {name: f"({span.low:.2f} – {span.high:.2f})" for name, span in found["intervals"].items()}
        rows.append([label, *(f"{spread(found['means'][name])} {spans[name]}" for name in MEASURES)])
    for label, values in published.items():
        rows.append([f"*published, on other data*: {label}", *(f"{value:.2f}" for value in values)])
    lines = [] if systems else ["DUC-2004 was not given (`--duc`); the published rows alone.", ""]
    lines += table(["", *MEASURES.values()], rows)
    if which in report["differences"]:
        told = ", ".join(
            f"{MEASURES[name]} {found.mean:+.2f} ({found.low:+.2f} – {found.high:+.2f})"
            for name, found in report["differences"][which].items()
        )
        lines += ["", f"Self-organized less full softmax, with the paired 95% interval: {told}."]
    return lines


def _times(report: Data) -> list[str]:
    full, rows = find(report, "full"), []
    for row in report["rows"]:
        rate = statistics.mean(row["words_per_second"])
        speed = f"{rate / statistics.mean(full['words_per_second']):.2f}×" if full else ""
        published = str(MINUTES.get(row["published"], ""))
        rows.append([row["label"], minutes(row), f"{rate:,.0f}", speed, spread(row["perplexity"]), published])
    header = ["minutes", "words a second", "speed", "validation perplexity", "published on Gigaword, minutes"]
    return table(["", *header], rows)


def _searches(speeds: list[Data]) -> list[str]:
    rows = []
    for speed in speeds:
        n, dense = speed["sentences"], speed["sentences"] / speed["dense_seconds"]
        cells = [speed["name"], str(speed["batch"]), str(speed["threads"]), f"{dense:.2f}", "", "", ""]
        if speed["pruned_seconds"] is not None:
            pruned = n / speed["pruned_seconds"]
            cells[-3:] = [f"{pruned:.2f}", f"{pruned / dense:.2f}×", f"{speed['equal']} of {n}"]
        rows.append(cells)
    header = ["side by side", "threads", "all words, sentences/s", "exact pruned, sentences/s", "speed"]
    return table(["", *header, "same titles"], rows)
