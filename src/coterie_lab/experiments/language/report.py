"""The report of a comparison of language models: tables with the published figures beside ours, figures, clusters."""

import math
import re
import statistics
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.corpus import Corpus
from coterie_lab.experiments import report as reports
from coterie_lab.experiments.comparison import Row
from coterie_lab.experiments.language.variants import PUBLISHED, TABLE_1, VARIANTS, Variant
from coterie_lab.experiments.report import Data, find, minutes, records, results, section, spread, table
from coterie_lab.explorer.collect import curves
from coterie_lab.explorer.figures import draw_curves
from coterie_lab.tasks.language import clusters
from coterie_lab.tasks.language.evaluate import unigram_perplexity
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training.logs import read_journal
from coterie_lab.training.moves import RANDOM
from coterie_lab.training.run import Run, read_json

TIME = "seconds of training, with making clusters beforehand"


def write(out: Path, corpus: Corpus, rows: list[Row[Variant]], seeds: list[int], published: bool = True) -> Data:
    """Reads what the runs wrote, and writes report.md, report.json and the figures.

    `published`: whether the paper's figures are of this text, and are shown next to ours.
    """
    organized = next((row for row in rows if row.name == "self-organized"), None) or next(
        (row for row in rows if read_journal(Run(row.paths[0]).reorganizations)), None
    )
    found, shown, alone, random = None, [], None, False
    if organized is not None:
        trained = Trained.open(organized.paths[0], "cpu")
        if isinstance(trained.model.head, SelfOrganizedSoftmax):
            shown, alone = clusters.table(trained), clusters.alone(trained, length=12)
            random = trained.organized.partition.random
        found = curves(organized.paths[0])
        with suppress(ImportError):  # without matplotlib there is no figure, but the report still has its data
            draw_curves(found, out / "figure1")
    paces = [pace(reports.label(row), row.paths[0]) for row in rows]
    heads = [one for one, row in zip(paces, rows, strict=True) if not row.variant.ablation]
    draw_paces(heads or paces, out / "figure2.png")
    report = {
        "corpus": of_corpus(corpus),
        "seeds": seeds,
        "length": _length(read_json(Run(rows[0].paths[0]).config)["settings"]),
        "rows": [_figures(row, len(corpus.train), published) for row in rows],
        "clusters": [asdict(one) for one in shown],
        "alone": asdict(alone) if alone else None,  # the words that stand alone
        "random": random,  # whether no word has moved
        "curves": asdict(found) if found else None,
        "paces": paces,  # of the first seed
        "published": published,
        **reports.origin(rows),
    }  # fmt: skip
    reports.write(out, report, markdown(report, out))
    return report


def of_corpus(corpus: Corpus) -> Data:
    """What a report says of its text."""
    return {
        "path": corpus.path.name, "train_words": len(corpus.train), "dev_words": len(corpus.dev),
        "vocabulary": corpus.n_words, "unigram_perplexity": unigram_perplexity(corpus.counts, corpus.dev),
    }  # fmt: skip


def _figures(row: Row[Variant], train_words: int, published: bool) -> Data:
    """What the runs of a variant reached, one number for each seed; perplexities on the development text, after the
    last epoch."""
    last, found = [records(path, "evaluate")[-1] for path in row.paths], results(row)
    seconds = [result["training_seconds"] for result in found]
    perplexities = ("perplexity", "cluster_perplexity", "in_cluster_perplexity")
    return {
        "name": row.name,
        "label": reports.label(row),
        **{name: [record[name] for record in last if name in record] for name in perplexities},
        "best": [result["best"]["perplexity"] for result in found],
        "seconds": seconds,  # of training alone
        "words_per_second": [one["epoch"] * train_words / time for one, time in zip(last, seconds, strict=True)],
        "published_perplexity": row.variant.perplexity if published else None,
        "published_minutes": row.variant.minutes if published else None,
    }


def _length(settings: Data) -> str:
    return f"{settings['updates']:,} updates" if settings["updates"] else f"{settings['epochs']} epoch(s)"


def pace(label: str, path: Path) -> Data:
    """How the perplexity of a run fell. Its time is that of building the model, with clusters that are made beforehand,
    and of its updates."""
    ((built,), looks) = records(path, "built"), records(path, "evaluate")
    return {
        "label": label,
        "seconds": [built["seconds"] + look["seconds"] for look in looks],
        "perplexity": [look["perplexity"] for look in looks],
        "building": built["seconds"],
    }


def markdown(report: Data, out: Path) -> list[str]:
    """The report as Markdown."""
    corpus = report["corpus"]
    lines = [
        "# Language modelling: every head in the same trainer",
        "",
        f"{corpus['train_words']:,} words to train on, {corpus['dev_words']:,} for development, a vocabulary of "
        f"{corpus['vocabulary']:,}; {report['length']}; seed(s) {', '.join(map(str, report['seeds']))}. "
        "Perplexities are on the development text after the last epoch; ± is the standard deviation over the seeds, "
        "n of them where it is not one. "
        f"How frequent the words are, and nothing else, gives {corpus['unigram_perplexity']:,.1f}."
        + (' "Published" is what the paper prints, on its own hardware.' if report["published"] else ""),
        *section("Table 1: perplexity", *_perplexities(report)),
        *section("Table 2: training time", *_times(report)),
        "",
        "Speeds compare the middle run of each: a machine's first compiles kernels, and takes longer for it.",
    ]
    if report["curves"] is not None:
        figure = image(out, "perplexities and words moved", "figure1.png")
        lines += section("Figure 1: while training", *figure, "Its data are in `report.json`, under `curves`.")
    lines += section(
        "Figure 2: perplexity against training time",
        *image(out, "perplexity against seconds of training", "figure2.png"),
        f"Seed {report['seeds'][0]}; building the model, and making clusters beforehand, is part of the time.",
        "Its data are in `report.json`, under `paces`.",
    )
    if report["clusters"]:
        lines += section("Table 3: some clusters", *_some_clusters(report))
    return lines


def _some_clusters(report: Data) -> list[str]:
    lines = [f"These clusters are {RANDOM}.", ""] if report["random"] else []
    if alone := report["alone"]:
        frequent = plainly(" ".join(alone["words"]))
        lines += [f"{alone['size']:,} words stand alone and make up {alone['share']:.1%} of the text: {frequent} …", ""]
    lines += ["| share of the text | words |", "| ---: | --- |"]
    return lines + [f"| {one['share']:.2%} | {plainly(' '.join(one['words']))} |" for one in report["clusters"]]


def _perplexities(report: Data) -> list[str]:
    rows = []
    for row in report["rows"]:
        n = len(row["perplexity"])
        cells = [row["label"] if n == 1 else f"{row['label']} (n = {n})", spread(row["perplexity"])]
        cells += [spread(row["best"]), spread(row["cluster_perplexity"], 1), spread(row["in_cluster_perplexity"], 1)]
        rows.append([*cells, _plain(row["published_perplexity"])])
    if report["published"]:
        trained = {row["name"] for row in report["rows"]}
        known = {VARIANTS[name].label: VARIANTS[name].perplexity for name in TABLE_1 if name not in trained}
        for label, value in (PUBLISHED | known).items():
            rows.append([f"{label}, not trained here", "", "", "", "", _plain(value)])
    return _table(report, ["", "perplexity", "best", "of the cluster", "inside it", "published"], rows)


def _times(report: Data) -> list[str]:
    full = find(report, "full-eager", "full")
    rows = []
    for row in report["rows"]:
        speed = f"{statistics.median(full['seconds']) / statistics.median(row['seconds']):.2f}×" if full else ""
        rate = f"{statistics.median(row['words_per_second']):,.0f}"
        rows.append([row["label"], minutes(row), rate, speed, _plain(row["published_minutes"])])
    against = f", against {full['label']}" if full else ""
    return _table(report, ["", "minutes", "words a second", f"speed{against}", "published, minutes"], rows)


def _table(report: Data, header: list[str], rows: list[list[str]]) -> list[str]:
    """A table whose last column, with published figures, is only in some reports."""
    return table(header, rows) if report["published"] else table(header[:-1], [row[:-1] for row in rows])


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def image(out: Path, said: str, name: str) -> list[str]:
    """A figure, if it could be drawn."""
    return [f"![{said}]({name})", ""] if (out / name).exists() else []


def plainly(text: str) -> str:
    """Text escaped for Markdown, also in tables."""
    return re.sub(r"([\\`*_{}\[\]<>|~])", r"\\\1", text)


def draw_paces(paces: list[Data], path: Path, over: str = "seconds", said: str = TIME) -> None:
    """Draws perplexity against the time of training as PNG, up to three times the best; not without matplotlib.

    `over`: what else it is drawn against, and `said` how the axis says it.
    """
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")  # no window
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(8, 5))
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for number, found in enumerate(paces):
        ours = found["label"] == "self-organized"
        axes.plot(
            found[over], found["perplexity"], label=found["label"], marker="o", markersize=3,
            color="black" if ours else colours[number % len(colours)], linewidth=2.5 if ours else 1.2,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, ticks in ((axes.xaxis, (1, 2, 3, 5)), (axes.yaxis, (1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 6))):
        axis.set_major_locator(ticker.LogLocator(subs=ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(ticker.NullLocator())
    if reached := [last for found in paces for last in found["perplexity"][-1:] if math.isfinite(last)]:
        axes.set_ylim(top=3 * min(reached))
    axes.set_xlabel(said)
    axes.set_ylabel("perplexity on the development text")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
