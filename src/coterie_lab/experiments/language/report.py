"""The report of a comparison: tables with the published figures beside ours, a figure, clusters; Markdown and JSON."""

import re
import statistics
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.corpus import Corpus
from coterie_lab.experiments.language import pace
from coterie_lab.experiments.language.variants import PUBLISHED, TABLE_1, VARIANTS, Variant
from coterie_lab.explorer.collect import Curves, curves
from coterie_lab.explorer.figures import draw_curves
from coterie_lab.tasks.language.clusters import Cluster, table
from coterie_lab.tasks.language.evaluate import unigram_perplexity
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training.environment import describe
from coterie_lab.training.logs import read_journal
from coterie_lab.training.reporting import environments, how_it_was_made, spread
from coterie_lab.training.run import Run, read_json, write_json, write_whole


@dataclass(frozen=True)
class Row:
    """A variant and its runs, one for each seed."""

    name: str
    variant: Variant
    paths: list[Path]


@dataclass(frozen=True)
class Figures:
    """What a variant reached; one number for each seed."""

    name: str
    label: str
    perplexity: list[float]  # on the development text, after the last epoch
    best: list[float]
    cluster_perplexity: list[float]
    in_cluster_perplexity: list[float]
    seconds: list[float]  # of training alone
    words_per_second: list[float]
    published_perplexity: float | None
    published_minutes: float | None


@dataclass(frozen=True)
class Report:
    """Everything that the Markdown says, as data."""

    corpus: dict[str, Any]
    seeds: list[int]
    epochs: int
    rows: list[Figures]
    clusters: list[Cluster]
    curves: Curves | None
    paces: list[pace.Pace]  # of the first seed
    published: bool  # whether the paper's figures are of this text
    environments: list[dict[str, Any]]  # of the runs, each once
    environment: dict[str, Any]  # of the report


def write(out: Path, corpus: Corpus, rows: list[Row], seeds: list[int], published: bool = True) -> Report:
    """Reads what the runs wrote, and writes report.md, report.json and the figures.

    `published`: whether the paper's figures are of this text, and stand beside ours.
    """
    organized = next((row for row in rows if row.name == "self-organized"), None) or next(
        (row for row in rows if read_journal(Run(row.paths[0]).reorganizations)), None
    )
    shown: list[Cluster] = []
    found: Curves | None = None
    if organized is not None:
        trained = Trained.open(organized.paths[0], "cpu")
        shown = table(trained) if isinstance(trained.model.head, SelfOrganizedSoftmax) else []
        found = curves(organized.paths[0])
        with suppress(ImportError):  # without matplotlib there is no figure; its data is in the report all the same
            draw_curves(found, out / "figure1")
    paces = [pace.pace(row.variant.label, row.paths[0]) for row in rows]
    heads = [found for found, row in zip(paces, rows, strict=True) if not row.variant.ablation]
    pace.draw(heads or paces, out / "figure2.png")
    described = {"path": corpus.path.name, "train_words": len(corpus.train), "dev_words": len(corpus.dev)}
    frequencies = {"vocabulary": corpus.n_words, "unigram_perplexity": unigram_perplexity(corpus.counts, corpus.dev)}
    report = Report(
        corpus={**described, **frequencies},
        seeds=seeds,
        epochs=read_json(Run(rows[0].paths[0]).config)["settings"]["epochs"],
        rows=[figures(row, len(corpus.train)) for row in rows],
        clusters=shown,
        curves=found,
        paces=paces,
        published=published,
        environments=environments(path for row in rows for path in row.paths),
        environment=describe(),
    )
    write_json(out / "report.json", asdict(report))
    write_whole(out / "report.md", markdown(report, out))
    return report


def figures(row: Row, train_words: int) -> Figures:
    """What the runs of a variant reached."""
    last, results = [], []
    for path in row.paths:
        run = Run(path)
        last.append([record for record in read_journal(run.log) if record["event"] == "evaluate"][-1])
        results.append(read_json(run.result))
    epochs = [record["epoch"] for record in last]
    seconds = [result["training_seconds"] for result in results]
    return Figures(
        name=row.name,
        label=row.variant.label,
        perplexity=[record["perplexity"] for record in last],
        best=[result["best"]["perplexity"] for result in results],
        cluster_perplexity=[record["cluster_perplexity"] for record in last if "cluster_perplexity" in record],
        in_cluster_perplexity=[record["in_cluster_perplexity"] for record in last if "in_cluster_perplexity" in record],
        seconds=seconds,
        words_per_second=[n * train_words / time for n, time in zip(epochs, seconds, strict=True)],
        published_perplexity=row.variant.perplexity,
        published_minutes=row.variant.minutes,
    )


def markdown(report: Report, out: Path) -> str:
    """The report, for people."""
    full = next((row for row in report.rows if row.name == "full-eager"), None) or next(
        (row for row in report.rows if row.name == "full"), None
    )
    corpus = report.corpus
    lines = [
        "# Language modelling: every head in the same trainer",
        "",
        f"{corpus['train_words']:,} words to train on, {corpus['dev_words']:,} for development, a vocabulary of "
        f"{corpus['vocabulary']:,}; {report.epochs} epoch(s); seed(s) {', '.join(map(str, report.seeds))}. "
        "Perplexities are on the development text after the last epoch; ± is the standard deviation over the seeds, "
        "n of them where it is not one. "
        f"How frequent the words are, and nothing else, gives {corpus['unigram_perplexity']:,.1f}."
        + (' "Published" is what the paper prints, on its own hardware.' if report.published else ""),
        "",
        "## Table 1: perplexity",
        "",
        _row(["", "perplexity", "best", "of the cluster", "inside it"], "published", report),
        _row(["---", "---:", "---:", "---:", "---:"], "---:", report),
    ]
    for row in report.rows:
        cells = [_label(row), spread(row.perplexity), spread(row.best), spread(row.cluster_perplexity, 1)]
        lines.append(_row([*cells, spread(row.in_cluster_perplexity, 1)], _plain(row.published_perplexity), report))
    if report.published:
        trained = {row.name for row in report.rows}
        known = {VARIANTS[name].label: VARIANTS[name].perplexity for name in TABLE_1 if name not in trained}
        for label, value in (PUBLISHED | known).items():
            lines.append(_row([f"{label}, not trained here", "", "", "", ""], _plain(value), report))
    against = f", against {full.label}" if full else ""
    lines += ["", "## Table 2: training time", ""]
    lines += [_row(["", "minutes", "words a second", f"speed{against}"], "published, minutes", report)]
    lines += [_row(["---", "---:", "---:", "---:"], "---:", report)]
    for row in report.rows:
        minutes = [seconds / 60 for seconds in row.seconds]
        speed = f"{statistics.median(full.seconds) / statistics.median(row.seconds):.2f}×" if full else ""
        rate = f"{statistics.median(row.words_per_second):,.0f}"
        lines.append(_row([row.label, spread(minutes), rate, speed], _plain(row.published_minutes), report))
    lines += ["", "Speeds compare the middle run of each: a machine's first compiles kernels, and takes longer for it."]
    if report.curves is not None:
        lines += ["", "## Figure 1: while training", ""]
        lines += _image(out, "perplexities and words moved", "figure1.png")
        lines += ["Its data are in `report.json`, under `curves`."]
    lines += ["", "## Figure 2: perplexity against training time", ""]
    lines += _image(out, "perplexity against seconds of training", "figure2.png")
    lines += [f"Seed {report.seeds[0]}; building the model, and making clusters beforehand, is part of the time."]
    lines += ["Its data are in `report.json`, under `paces`."]
    if report.clusters:
        lines += ["", "## Table 3: some clusters", "", "| share of the text | words |", "| ---: | --- |"]
        lines += [f"| {cluster.share:.2%} | {_plainly(' '.join(cluster.words))} |" for cluster in report.clusters]
    lines += how_it_was_made(report.environment, report.environments)
    return "\n".join(lines) + "\n"


def _label(row: Figures) -> str:
    n = len(row.perplexity)
    return row.label if n == 1 else f"{row.label} (n = {n})"


def _image(out: Path, said: str, name: str) -> list[str]:
    """A figure, where it could be drawn."""
    return [f"![{said}]({name})", ""] if (out / name).exists() else []


def _row(cells: list[str], published: str, report: Report) -> str:
    """A line of a table; the published figure stands last, in a report that has them."""
    return "| " + " | ".join([*cells, published] if report.published else cells) + " |"


def _plainly(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    return re.sub(r"([\\`*_{}\[\]<>|~])", r"\\\1", text)


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
