"""The paper's summarization experiment: clusters of the words, every head in the same trainer, titles, a report."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.clustering.partition import Partition
from coterie_lab.data.folder import VOCABULARY
from coterie_lab.data.pair_sources import find
from coterie_lab.data.pairs import Pairs, Reading
from coterie_lab.data.prepare_pairs import prepare
from coterie_lab.data.settings import WORDS
from coterie_lab.data.sources import check_made_from
from coterie_lab.experiments.comparison import Row, chosen, rows_of, run_all, say
from coterie_lab.experiments.report import Data
from coterie_lab.experiments.summarization.report import write
from coterie_lab.experiments.summarization.speed import Speed, speeds
from coterie_lab.experiments.summarization.variants import VARIANTS, Variant
from coterie_lab.scoring.references import Duc
from coterie_lab.tasks.summarization import clusters
from coterie_lab.tasks.summarization.settings import Decoding, language_settings
from coterie_lab.tasks.summarization.train import train
from coterie_lab.tasks.summarization.trained import Trained
from coterie_lab.training.loop import Progress
from coterie_lab.training.run import write_whole

TITLES = "test.titles.txt"  # in a run's folder: what it wrote for the test
DUC_TITLES = "duc-{digest}.titles.txt"  # for DUC's sentences: other sentences, other titles


@dataclass(frozen=True)
class Plan:
    """The settings of a comparison, apart from those of its runs."""

    preset: str = "best"
    max_vocab: int | None = None  # the paper's
    source_words: bool = False
    duc: Path | None = None  # a folder with input.txt and task1_ref0.txt …
    sentences: int = 50  # test sentences for timing the search on a CPU; 0: no timing
    batch: int = 64  # sentences per batch of the search
    language_settings: dict[str, Any] | None = None  # of the language model that learns the clusters


def reproduce(
    source: str,
    out: Path,
    names: list[str],
    seeds: list[int],
    console: Console | None = None,
    plan: Plan | None = None,
    **given: Any,
) -> Data | None:
    """Trains each variant with each seed and writes DIR/report.md; None if it was stopped before the end.

    `source`: a folder from `coterie summarize prepare`, or pairs; `given`: settings of all runs, in place of their own.
    """
    plan = plan or Plan()
    variants = chosen(names, VARIANTS)
    duc = None if plan.duc is None else Duc.open(plan.duc)  # before anything is trained
    pairs = _pairs(source, out, plan)
    pairs.part("test")
    device = given.get("device", "auto")
    partitions: dict[Reading | None, Partition | None] = {None: None}
    for reading in dict.fromkeys(variant.reading(plan.preset) for variant in variants.values()):
        if reading is None:
            continue
        say(console, f"clusters from {'the titles' if reading == 'titles' else 'sentences and titles'}")
        own = {"head_options": {"own_words": 0}} if plan.preset == "paper" else {}  # there no word stands alone
        settings = language_settings(reading, **{"device": device, **own, **(plan.language_settings or {})})
        learned = clusters.cluster(pairs, out / f"clusters-{reading}", settings, reading, resume=True, console=console)
        if learned is None:
            return None
        partitions[reading] = clusters.load(learned, pairs)

    def train_row(row: Row[Variant], seed: int, path: Path) -> Progress:
        settings = row.variant.settings(plan.preset, seed=seed, **given)
        seats = partitions[row.variant.reading(plan.preset)]
        progress = train(pairs, path, settings, seats, resume=True, console=console)
        if progress.finished:
            _titles(pairs, path, plan, duc, device)
        return progress

    rows = rows_of(variants, seeds, out)
    if not run_all(rows, seeds, train_row, console):
        return None
    measured: list[Speed] = []
    if plan.sentences:
        say(console, "the speed of search on a CPU")
        runs = {row.variant.label: row.paths[0] for row in rows}
        measured = speeds(runs, pairs.text("test", "article")[: plan.sentences], out / "decoding.json")
    return write(out, pairs, rows, seeds, measured, TITLES, duc, _duc_titles(duc))


def _pairs(source: str, out: Path, plan: Plan) -> Pairs:
    """The prepared pairs; prepares them if the source is raw."""
    if (Path(source) / VOCABULARY).exists():
        return Pairs.open(source)
    ready = out / "data"
    wanted: dict[str, Any] = {"max_vocab": plan.max_vocab or WORDS, "source_words": plan.source_words}
    if not ready.exists():
        return prepare([source], ready, **wanted)
    pairs = Pairs.open(ready)
    files = (file.path for part in find([source]).files.values() for pair in part for file in pair)
    check_made_from(files, ready, pairs.source, **wanted)
    return pairs


def _titles(pairs: Pairs, path: Path, plan: Plan, duc: Duc | None, device: Any) -> None:
    """Writes a run's titles for the test set and for DUC's sentences, unless it has them."""
    wanted = [(TITLES, True, pairs.text("test", "article"))]
    if duc is not None:
        wanted.append((_duc_titles(duc), False, duc.sentences))
    for name, end, sentences in wanted:
        if not (path / name).exists():
            trained = Trained.open(path, device)
            if name == TITLES:
                trained = trained.of_tokens()
            titles = trained.summarize(sentences, Decoding(end=end, batch=plan.batch))
            write_whole(path / name, "".join(f"{title}\n" for title in titles))


def _duc_titles(duc: Duc | None) -> str:
    """The file of a run's titles for DUC's sentences."""
    told = "\n".join(duc.sentences if duc else [])
    return DUC_TITLES.format(digest=hashlib.sha256(told.encode()).hexdigest()[:8])
