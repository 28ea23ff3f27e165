"""The report of a comparison at equal updates: perplexity on the way and at the end, seconds, memory, and the ratios of
each head to the full softmax at its fastest."""

import statistics
from dataclasses import asdict
from pathlib import Path

from coterie_lab.data.corpus import Corpus
from coterie_lab.experiments import report as reports
from coterie_lab.experiments.comparison import Row
from coterie_lab.experiments.language.courses import Course, course, ratios
from coterie_lab.experiments.language.report import draw_paces, image, of_corpus
from coterie_lab.experiments.language.variants import Variant
from coterie_lab.experiments.report import Data, results, section, spread, table
from coterie_lab.training.run import Run, read_json

OURS = "self-organized"
# The full softmax with biases from the counts, in its forms; the fastest of those that were trained is compared with.
FULL = ("full", "full-eager", "full-compiled", "full-chunked")
LINES = 12  # of the table of perplexities, about
SHOWN = ("model", "layers", "hidden", "attention_heads", "positions", "dropout", "sequences", "length", "optimizer",
         "learning_rate", "schedule", "warmup", "weight_decay", "clip", "precision", "compile", "graph")  # fmt: skip


def write(out: Path, corpus: Corpus, rows: list[Row[Variant]], seeds: list[int]) -> Data:
    """Reads what the runs wrote, and writes report.md, report.json and the figures."""
    courses = {row.name: {seed_of(path): course(path) for path in row.paths} for row in rows}
    figures = [_figures(row, courses[row.name]) for row in rows]
    full = fastest(figures)
    if full is not None:
        for row in figures:
            row["ratios"] = against(courses[row["name"]], courses[full])
    first = [{"label": row.variant.label, **asdict(courses[row.name][seed_of(row.paths[0])])} for row in rows]
    draw_paces(first, out / "figure1.png", "updates", "updates")
    draw_paces(first, out / "figure2.png", "seconds", "seconds of training")
    report = {
        "corpus": of_corpus(corpus),
        "seeds": seeds,
        "settings": read_json(Run(rows[0].paths[0]).config)["settings"],
        "updates": results(rows[0])[0]["updates"],
        "rows": figures,
        "against": full,
        "courses": {name: {str(seed): asdict(one) for seed, one in found.items()} for name, found in courses.items()},
        **reports.origin(rows),
    }
    reports.write(out, report, markdown(report, out))
    return report


def seed_of(path: Path) -> int:
    """The seed of a run, from its folder's name."""
    return int(path.name.rpartition("-")[2])


def fastest(figures: list[Data]) -> str | None:
    """The form of the full softmax that took the least time; None if none was trained."""
    full = [row for row in figures if row["name"] in FULL]
    return min(full, key=lambda row: statistics.median(row["seconds"]))["name"] if full else None


def against(ours: dict[int, Course], full: dict[int, Course]) -> Data:
    """The ratios of each seed that both have: lists of the same length."""
    found = [ratios(one, full[seed]) for seed, one in ours.items() if seed in full]
    return {name: [one[name] for one in found] for name in found[0]} if found else {}


def _figures(row: Row[Variant], courses: dict[int, Course]) -> Data:
    """What the runs of a variant reached, one number for each seed."""
    found = results(row)
    return {
        "name": row.name,
        "label": row.variant.label,
        "seeds": list(courses),
        "perplexity": [one.perplexity[-1] for one in courses.values()],
        "seconds": [one["training_seconds"] for one in found],
        "starting_seconds": [one["starting_seconds"] for one in found],
        "milliseconds": [1000 * one["training_seconds"] / one["updates"] for one in found],  # an update
        "peak_memory": [one["peak_memory"] for one in found],
    }


def markdown(report: Data, out: Path) -> list[str]:
    """The report as Markdown."""
    corpus, rows, settings = report["corpus"], report["rows"], report["settings"]
    told = ", ".join(f"{name.replace('_', ' ')} {settings[name]}" for name in SHOWN)
    header = ["", "perplexity", "seconds", "milliseconds an update", "memory, GiB"]
    figures = [
        [
            row["label"], spread(row["perplexity"]), spread(row["seconds"], 1), spread(row["milliseconds"]),
            spread([bytes / 2**30 for bytes in row["peak_memory"] if bytes is not None]),
        ]
        for row in rows
    ]  # fmt: skip
    lines = [
        f"# {corpus['vocabulary']:,} words, {report['updates']:,} updates: every head in the same trainer",
        "",
        f"{corpus['train_words']:,} words to train on, {corpus['dev_words']:,} for development; seed(s) "
        f"{', '.join(map(str, report['seeds']))}. Settings of the first row: {told}. The same seed gives all heads the "
        "same text in the same order. Perplexities are on the development text; ± is the standard deviation over the "
        "seeds. Seconds are those of the updates alone, with what reorganisations take and without evaluations; on a "
        "GPU the first updates of each start, which compile kernels, are left out. Memory is the most that training "
        "had allocated.",
        *section("After the last update", *table(header, figures)),
    ]
    if report["against"] is not None:
        label = next(row["label"] for row in rows if row["name"] == report["against"])
        lines += section(f"Against the {label}", *_ratios(rows, report["against"]))
    lines += section("At equal updates", *_on_the_way(report))
    seed = report["seeds"][0]
    lines += section(
        "Figure 1: perplexity against updates",
        *image(out, "perplexity against updates", "figure1.png"),
        f"Seed {seed}. The data of both figures are in `report.json`, under `courses`.",
    )
    lines += section(
        "Figure 2: perplexity against time",
        *image(out, "perplexity against seconds of training", "figure2.png"),
        f"Seed {seed}.",
    )
    if jumps := report["courses"].get(OURS, {}).get(str(seed), {}).get("jumps"):
        header = ["update", "share of the text moved", "perplexity before", "directly after", "after ÷ before"]
        moved = [
            [f"{one['update']:,}", f"{one['share_of_mass']:.1%}", f"{one['before']:,.2f}", f"{one['after']:,.2f}",
             f"{one['after'] / one['before']:.4f}"]
            for one in jumps
        ]  # fmt: skip
        lines += section(f"Reorganisations of seed {seed}", *table(header, moved))
    return lines


def _ratios(rows: list[Data], full: str) -> list[str]:
    """The table of the ratios to the full softmax."""
    header = ["", "final perplexity ÷ full", "largest on the way", "at update", "full's seconds ÷ seconds to its last "
              "perplexity", "full's memory ÷ memory"]  # fmt: skip
    lines = []
    for row in rows:
        if (found := row["ratios"]) and row["name"] != full:
            worst = max(zip(found["largest"], found["largest_at"], strict=True))
            lines.append([
                row["label"], spread(found["final"], 4), f"{worst[0]:.4f}", f"{worst[1]:,}",
                _some(found["seconds"]), spread([ratio for ratio in found["memory"] if ratio is not None]),
            ])  # fmt: skip
    return [
        *table(header, lines),
        "",
        "Each seed is compared with the same seed: ± is the standard deviation of its ratios. The largest is that of "
        "all seeds and of all updates at which both were evaluated, directly after reorganisations too. Between two "
        "evaluations the logarithm of a perplexity is taken to fall evenly.",
    ]


def _some(values: list[float | None]) -> str:
    """The mean of values of which some may be missing."""
    known = [value for value in values if value is not None]
    missing = f" ({len(values) - len(known)} never)" if known and len(known) < len(values) else ""
    return spread(known) + missing if known else "never"


def _on_the_way(report: Data) -> list[str]:
    """Perplexities after the updates at which all runs were evaluated: about a dozen of them."""
    every = [course["updates"] for found in report["courses"].values() for course in found.values()]
    shared = sorted(set(every[0]).intersection(*every[1:]))
    if usual := report["settings"]["evaluate_every"]:
        shared = [update for update in shared if update % usual == 0 or update == report["updates"]]
    chosen = shared[:: -(-len(shared) // LINES)]
    chosen += shared[-1:] if shared[-1:] != chosen[-1:] else []
    rows = []
    for update in chosen:
        cells = [
            spread([one["perplexity"][one["updates"].index(update)] for one in found.values()])
            for found in report["courses"].values()
        ]
        rows.append([f"{update:,}", *cells])
    return table(["update", *(row["label"] for row in report["rows"])], rows)
