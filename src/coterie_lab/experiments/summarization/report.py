"""The report of the summarization experiment: the paper's Tables 4, 5 and 6 and its examples; Markdown and JSON."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie_lab.data.pairs import Pairs
from coterie_lab.experiments.summarization.variants import DUC, GIGAWORD, MINUTES, Variant
from coterie_lab.scoring import rouge
from coterie_lab.scoring.bootstrap import Interval, difference, interval
from coterie_lab.scoring.references import Duc
from coterie_lab.tasks.summarization.speed import Speed
from coterie_lab.training.environment import describe
from coterie_lab.training.logs import read_journal
from coterie_lab.training.reporting import environments, how_it_was_made, spread
from coterie_lab.training.run import Run, read_json, write_json, write_whole

MEASURES = ("rouge1", "rouge2", "rougeL")
LEAD = 8  # words: what copying the beginning is worth
EXAMPLES = 8


@dataclass(frozen=True)
class Row:
    """A variant and its runs, one for each seed."""

    name: str
    variant: Variant
    paths: list[Path]


@dataclass(frozen=True)
class Scored:
    """ROUGE of one system, in percent."""

    means: dict[str, list[float]]  # of each seed
    intervals: dict[str, Interval]  # of the mean over the seeds


@dataclass(frozen=True)
class Figures:
    """What a variant reached; one number for each seed."""

    name: str
    label: str
    test: Scored
    duc: Scored | None
    perplexity: list[float]  # of the validation titles, at its best
    seconds: list[float]  # of training alone
    words_per_second: list[float]  # of titles, the median of the log: without what the start costs
    published: str | None


@dataclass(frozen=True)
class Report:
    """Everything that the Markdown says, as data."""

    pairs: dict[str, Any]
    seeds: list[int]
    settings: dict[str, Any]  # of the first run
    rows: list[Figures]
    lead: Scored
    differences: dict[str, dict[str, Interval]]  # self-organized less full softmax: on the test, and on DUC-2004
    speeds: list[Speed]
    examples: list[dict[str, str]]
    environments: list[dict[str, Any]]  # of the runs, each once
    environment: dict[str, Any]  # of the report


def write(
    out: Path, pairs: Pairs, rows: list[Row], seeds: list[int], speeds: list[Speed], titles: str, duc: Duc | None,
    duc_titles: str,
) -> Report:  # fmt: skip
    """Reads what the runs wrote, scores it, and writes report.md and report.json."""
    articles, references = pairs.text("test", "article"), pairs.text("test", "title")
    scores = {
        row.name: [rouge.full_length(read_titles(path / titles), references) for path in row.paths] for row in rows
    }
    recalls: dict[str, list[rouge.Scores]] = {}
    if duc is not None:
        recalls = {
            row.name: [rouge.limited_recall(read_titles(path / duc_titles), duc.references) for path in row.paths]
            for row in rows
        }
    report = Report(
        pairs={
            "path": pairs.path.name, "vocabulary": pairs.n_words, "left_out": pairs.source["left_out"],
            **{name: len(part) for name, part in pairs.parts.items()},
        },
        seeds=seeds,
        settings=read_json(Run(rows[0].paths[0]).config)["settings"],
        rows=[figures(row, scores[row.name], recalls.get(row.name)) for row in rows],
        lead=scored([rouge.full_length([" ".join(line.split()[:LEAD]) for line in articles], references)]),
        differences={
            name: {measure: _difference(found["self-organized"], found["full"], measure) for measure in MEASURES}
            for name, found in (("test", scores), ("duc", recalls))
            if {"self-organized", "full"} <= found.keys()
        },
        speeds=speeds,
        examples=examples(articles, references, {row.name: read_titles(row.paths[0] / titles) for row in rows}),
        environments=environments(path for row in rows for path in row.paths),
        environment=describe(),
    )  # fmt: skip
    write_json(out / "report.json", asdict(report))
    write_whole(out / "report.md", markdown(report))
    return report


def read_titles(path: Path) -> list[str]:
    """What a run wrote, a title a line; one may be empty."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def scored(runs: Sequence[rouge.Scores]) -> Scored:
    """The scores of a system's runs on the same items, in percent."""
    means = {measure: [100 * float(getattr(run, measure).mean()) for run in runs] for measure in MEASURES}
    return Scored(means, {measure: _percent(interval(_over_seeds(runs, measure))) for measure in MEASURES})


def _over_seeds(runs: Sequence[rouge.Scores], measure: str) -> np.ndarray[Any, Any]:
    """(N,) each item's mean over the seeds."""
    return np.asarray(np.mean([getattr(run, measure) for run in runs], axis=0))


def _difference(ours: Sequence[rouge.Scores], theirs: Sequence[rouge.Scores], measure: str) -> Interval:
    return _percent(difference(_over_seeds(ours, measure), _over_seeds(theirs, measure)))


def _percent(found: Interval) -> Interval:
    return Interval(*(100 * value for value in found))


def figures(row: Row, test: list[rouge.Scores], duc: list[rouge.Scores] | None) -> Figures:
    """What the runs of a variant reached."""
    results = [read_json(Run(path).result) for path in row.paths]
    rates = []
    for path in row.paths:
        log = [record for record in read_journal(Run(path).log) if record["event"] == "train"]
        rates.append(statistics.median(record["words_per_second"] for record in log))
    return Figures(
        name=row.name, label=row.variant.label, test=scored(test), duc=scored(duc) if duc else None,
        perplexity=[result["best"]["perplexity"] for result in results],
        seconds=[result["training_seconds"] for result in results], words_per_second=rates,
        published=row.variant.published,
    )  # fmt: skip


def examples(articles: list[str], references: list[str], titles: dict[str, list[str]]) -> list[dict[str, str]]:
    """Some of the test, evenly from its beginning to its end: sentence, reference, what each variant wrote."""
    step = max(1, len(articles) // EXAMPLES)
    return [
        {"sentence": articles[n], "reference": references[n], **{name: found[n] for name, found in titles.items()}}
        for n in range(step // 2, len(articles), step)
    ][:EXAMPLES]


def markdown(report: Report) -> str:
    """The report, for people."""
    pairs = report.pairs
    lines = [
        "# Sentence summarization: every head in the same trainer",
        "",
        f"{pairs['train']:,} pairs to train on, {pairs['valid']:,} for validation, {pairs['test']:,} for the test; a "
        f"vocabulary of {pairs['vocabulary']:,}; {report.settings['epochs']} epochs; seed(s) "
        f"{', '.join(map(str, report.seeds))}. ROUGE in percent; ± is the standard deviation over the seeds, the "
        "interval the 95% bootstrap interval of the mean over the seeds. **Published rows are of systems trained on "
        "other data, the paper's on the 3.8 million pairs of Gigaword: they cannot be compared with the rows above.**",
    ]
    lines += _rouge_table("Table 4: DUC-2004, recall within 75 bytes", report, "duc", DUC)
    lines += _rouge_table("Table 5: the test, full-length F1", report, "test", GIGAWORD)
    lines += _time_table(report)
    lines += _speed_table(report)
    lines += ["", "## Examples", "", "The first seed of each; no choice was made among them.", ""]
    labels = {row.name: row.label for row in report.rows}
    for example in report.examples:
        for name, text in example.items():
            lines.append(f"- *{labels.get(name, name)}*: {text}")
        lines.append("")
    lines += how_it_was_made(report.environment, report.environments)
    return "\n".join(lines) + "\n"


def _rouge_table(title: str, report: Report, which: str, published: dict[str, tuple[float, float, float]]) -> list[str]:
    lines = ["", f"## {title}", ""]
    rows = [(row.label, getattr(row, which)) for row in report.rows]
    if which == "test":
        rows.insert(0, (f"the sentence's first {LEAD} words", report.lead))
    found = [(label, scores) for label, scores in rows if scores is not None]
    if not found:
        lines += ["DUC-2004 was not given (`--duc`); the published rows alone.", ""]
    lines += ["| | R-1 | R-2 | R-L |", "| --- | ---: | ---: | ---: |"]
    for label, scores in found:
        means = [spread(scores.means[measure]) for measure in MEASURES]
        ranges = [
            f"({scores.intervals[measure].low:.2f} – {scores.intervals[measure].high:.2f})" for measure in MEASURES
        ]
        cells = [f"{mean} {low_high}" for mean, low_high in zip(means, ranges, strict=True)]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    for label, figures in published.items():
        lines.append(f"| *published, on other data*: {label} | {' | '.join(f'{value:.2f}' for value in figures)} |")
    if which in report.differences:
        told = ", ".join(
            f"{name} {found.mean:+.2f} ({found.low:+.2f} – {found.high:+.2f})"
            for name, found in zip(("R-1", "R-2", "R-L"), report.differences[which].values(), strict=True)
        )
        lines += ["", f"Self-organized less full softmax, with the paired 95% interval: {told}."]
    return lines


def _time_table(report: Report) -> list[str]:
    full = next((row for row in report.rows if row.name == "full"), None)
    lines = ["", "## Table 6: training time", ""]
    lines += ["| | minutes | words a second | speed | validation perplexity | published on Gigaword, minutes |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in report.rows:
        rate = statistics.mean(row.words_per_second)
        speed = f"{rate / statistics.mean(full.words_per_second):.2f}×" if full else ""
        published = MINUTES.get(row.published or "", "")
        minutes = spread([seconds / 60 for seconds in row.seconds])
        lines.append(f"| {row.label} | {minutes} | {rate:,.0f} | {speed} | {spread(row.perplexity)} | {published} |")
    lines += [
        "",
        "Words are those of the titles; their rate is the median of the log, so that compiling and recording at",
    ]
    lines += ["the start do not count; the minutes are of all training. Speed is against the full softmax."]
    return lines


def _speed_table(report: Report) -> list[str]:
    if not report.speeds:
        return []
    lines = ["", "## Searching on a CPU: beam of 5", ""]
    lines += ["| | side by side | threads | all words, sentences/s | exact pruned, sentences/s | speed | same titles |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for speed in report.speeds:
        dense = speed.sentences / speed.dense_seconds
        cells = ["", "", ""]
        if speed.pruned_seconds is not None:
            pruned = speed.sentences / speed.pruned_seconds
            cells = [f"{pruned:.2f}", f"{pruned / dense:.2f}×", f"{speed.equal} of {speed.sentences}"]
        lines.append(f"| {speed.name} | {speed.batch} | {speed.threads} | {dense:.2f} | {' | '.join(cells)} |")
    return lines
