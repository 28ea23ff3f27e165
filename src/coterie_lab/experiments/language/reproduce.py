"""The paper's first experiment: every head in the same trainer, and a report."""

from pathlib import Path
from typing import Any

from rich.console import Console

from coterie_lab.data.corpus import Corpus, prepare
from coterie_lab.data.folder import VOCABULARY
from coterie_lab.data.sources import check_made_from, check_made_with, find
from coterie_lab.data.text8 import NAME as TEXT8
from coterie_lab.experiments.comparison import Row, chosen, rows_of, run_all
from coterie_lab.experiments.language import equal_updates
from coterie_lab.experiments.language.experiments import EXPERIMENTS, Experiment, generated, parts_of
from coterie_lab.experiments.language.report import write
from coterie_lab.experiments.language.variants import VARIANTS, Variant
from coterie_lab.experiments.report import Data
from coterie_lab.tasks.language.train import train
from coterie_lab.training.logs import read_journal
from coterie_lab.training.loop import Progress
from coterie_lab.training.run import Run

MIN_COUNT, DEV_CHARS = 11, 1_000_000  # the paper's vocabulary of 44k, and its split


def reproduce(
    source: str | None,
    out: Path,
    names: list[str],
    seeds: list[int],
    console: Console | None = None,
    min_count: int = MIN_COUNT,
    dev_chars: int = DEV_CHARS,
    max_vocab: int | None = None,
    experiment: Experiment = EXPERIMENTS["text8"],
    **given: Any,
) -> Data | None:
    """Trains each variant with each seed and writes DIR/report.md; None if it was stopped before the end.

    Finished runs of other seeds are included, so important heads can have more seeds than others.
    `source`: a folder from `coterie lm prepare`, or text; `max_vocab`: of its words, the most frequent ones in place of
    those with `min_count` occurrences; `given`: settings for all runs, in place of their own.
    """
    variants = chosen(names, VARIANTS)
    wanted = {"min_count": 1 if max_vocab else min_count, "max_vocab": max_vocab, "dev_chars": dev_chars}
    corpus = _corpus(source, out, experiment, wanted)
    rows = rows_of(variants, seeds, out)
    if experiment.equal_updates:
        rows.sort(key=lambda row: row.name != equal_updates.OURS)  # it says where the others are evaluated

    def train_row(row: Row[Variant], seed: int, path: Path) -> Progress:
        also = {"evaluate_at": _moves(out, seed)} if experiment.equal_updates and row.name != equal_updates.OURS else {}
        settings = experiment.settings_of(row.variant, **{"seed": seed, **also, **given})
        return train(corpus, path, settings, resume=True, console=console)

    if not run_all(rows, seeds, train_row, console):
        return None
    for row in rows:
        for seed, path in _finished(out / "runs", row):
            train_row(row, seed, path)  # refuses other settings
            row.paths.append(path)
    if experiment.equal_updates:
        return equal_updates.write(out, corpus, rows, seeds)
    return write(out, corpus, rows, seeds, experiment.published)


def _moves(out: Path, seed: int) -> str:
    """The updates after which the self-organized head with this seed reorganised, with commas between."""
    (row,) = rows_of({equal_updates.OURS: VARIANTS[equal_updates.OURS]}, [seed], out)
    return ",".join(str(record["step"]) for record in read_journal(Run(row.paths[0]).reorganizations))


def _finished(runs: Path, row: Row[Variant]) -> list[tuple[int, Path]]:
    """The finished runs of a variant with other seeds: seeds and folders."""
    there = ((path.name.removeprefix(f"{row.name}-"), path) for path in runs.glob(f"{row.name}-*"))
    done = [(int(seed), path) for seed, path in there if seed.isdigit() and Run(path).result.exists()]
    return sorted((seed, path) for seed, path in done if path not in row.paths)


def _corpus(source: str | None, out: Path, experiment: Experiment, wanted: dict[str, Any]) -> Corpus:
    """The prepared text; prepares it as `wanted` if the source is raw text."""
    if source is None:
        if experiment.name == "generated":
            return generated(out)
        files = "a folder of its train, valid and test files" if experiment.parts else "a file or text8"
        raise ValueError(f"{experiment.name} needs its text: give {files}, or a folder from `coterie lm prepare`")
    if (Path(source) / VOCABULARY).exists():
        if wanted["max_vocab"] is not None:
            raise ValueError(f"{source} is prepared already: leave out --max-vocab, or give the text itself")
        return Corpus.open(source)
    ready = out / "data"
    if ready.exists():
        corpus = Corpus.open(ready)
        if experiment.parts:
            check_made_from(parts_of(Path(source)), ready, corpus.source)
        elif source != TEXT8 or Path(source).exists():
            check_made_from([file.path for file in find([source])], ready, corpus.source, **wanted)
        else:  # that name always means the same text
            check_made_with(ready, corpus.source, **wanted)
        return corpus
    if experiment.parts:
        train_part, valid, test = parts_of(Path(source))
        return prepare([train_part], ready, dev=valid, test=test, eos=True)
    return prepare([source], ready, **wanted)
