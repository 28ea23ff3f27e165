"""The paper's first experiment: every head in the same trainer, one run after the other, and a report.

What is finished is not done again, and what was stopped goes on: the command can be killed and repeated at will.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie_lab.data.corpus import Corpus, prepare
from coterie_lab.data.folder import VOCABULARY
from coterie_lab.data.sources import check_made_from, find
from coterie_lab.data.text8 import NAME as TEXT8
from coterie_lab.experiments.language.experiments import EXPERIMENTS, Experiment, in_parts, parts_of
from coterie_lab.experiments.language.report import Report, Row, write
from coterie_lab.experiments.language.variants import chosen
from coterie_lab.tasks.language.train import train
from coterie_lab.training.run import Run

MIN_COUNT, DEV_CHARS = 11, 1_000_000  # the paper's vocabulary of 44k, and its split


def reproduce(
    source: str,
    out: Path,
    names: list[str],
    seeds: list[int],
    console: Console | None = None,
    min_count: int = MIN_COUNT,
    dev_chars: int = DEV_CHARS,
    experiment: Experiment = EXPERIMENTS["text8"],
    **given: Any,
) -> Report | None:
    """Trains each variant with each seed and writes DIR/report.md; None if it was stopped before the end.

    Runs of other seeds that are there already are counted in: the heads that matter may have more of them than others.
    `source`: a folder from `coterie lm prepare`, or text; `given`: settings for all runs, in place of their own.
    """
    variants = chosen(names)
    if not experiment.published:
        variants = {name: replace(variant, perplexity=None, minutes=None) for name, variant in variants.items()}
    corpus = _corpus(source, out, experiment, min_count, dev_chars)
    rows = [
        Row(name, variant, [out / "runs" / f"{name}-{seed}" for seed in seeds]) for name, variant in variants.items()
    ]
    for row in rows:
        for seed, path in zip(seeds, row.paths, strict=True):
            if console is not None:
                console.print(f"{row.variant.label}, seed {seed}", highlight=False)
            settings = experiment.settings_of(row.variant, seed=seed, **given)
            if not train(corpus, path, settings, resume=True, console=console).finished:
                return None
        for seed, path in _finished(out / "runs", row):
            settings = experiment.settings_of(row.variant, seed=seed, **given)
            train(corpus, path, settings, resume=True)  # refuses other settings
            row.paths.append(path)
    return write(out, corpus, rows, seeds, experiment.published)


def _finished(runs: Path, row: Row) -> list[tuple[int, Path]]:
    """Runs of a variant that are done, beside those asked for: seeds and folders."""
    there = ((path.name.removeprefix(f"{row.name}-"), path) for path in runs.glob(f"{row.name}-*"))
    done = [(int(seed), path) for seed, path in there if seed.isdigit() and Run(path).result.exists()]
    return sorted((seed, path) for seed, path in done if path not in row.paths)


def _corpus(source: str, out: Path, experiment: Experiment, min_count: int, dev_chars: int) -> Corpus:
    """The prepared text, made from its source if that is not it already."""
    if (Path(source) / VOCABULARY).exists():
        return Corpus.open(source)
    ready = out / "data"
    if ready.exists():
        corpus = Corpus.open(ready)
        if experiment.parts:
            check_made_from(parts_of(Path(source)), ready, corpus.source)
        elif source != TEXT8 or Path(source).exists():  # that name stands for one text, wherever it came from
            files = [file.path for file in find([source])]
            check_made_from(files, ready, corpus.source, min_count=min_count, dev_chars=dev_chars)
        return corpus
    if experiment.parts:
        return in_parts(Path(source), ready)
    return prepare([source], ready, min_count=min_count, dev_chars=dev_chars)
