"""The commands `coterie summarize …`, from pairs to titles."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from coterie_lab.commands import training
from coterie_lab.commands.language import OnDevice
from coterie_lab.commands.parameters import takes
from coterie_lab.commands.prepare import prepare_pairs
from coterie_lab.commands.score import score
from coterie_lab.tasks.language.settings import ONLY
from coterie_lab.tasks.language.settings import Settings as LanguageSettings
from coterie_lab.tasks.summarization.settings import Decoding, Settings, from_preset, language_settings

summarize = typer.Typer(
    no_args_is_help=True, help="Sentence summarization: prepare pairs, train on them, write titles and score them."
)
summarize.command("prepare")(prepare_pairs)

TRANSFORMERS = [name for name, model in ONLY.items() if model == "transformer"]
Data = Annotated[Path, Argument(metavar="DATA", help="a folder from `coterie summarize prepare`")]


@summarize.command()
@takes(LanguageSettings, language_settings("both"), but=("head", "model", *TRANSFORMERS))
def cluster(
    data: Data,
    out: Annotated[Path, Option(metavar="RUN", help="the language model's folder; its clusters are in clusters.json")],
    titles_only: Annotated[bool, Option("--titles-only", help="leave the sentences out, as in the paper")] = False,
    resume: training.Resume = False,
    force: training.Force = False,
    *,
    given: dict[str, Any],
) -> None:
    """Learn clusters with a language model of the pairs' text; `train --partition RUN` then uses them.

    The defaults shown are for sentences and titles; --titles-only has others for some of them.
    """
    from coterie_lab.data.pairs import Pairs, Reading
    from coterie_lab.tasks.language.trained import Trained
    from coterie_lab.tasks.summarization import clusters
    from coterie_lab.training.logs import Listening
    from coterie_lab.training.moves import RANDOM
    from coterie_lab.training.run import Run

    pairs = Pairs.open(data)
    reading: Reading = "titles" if titles_only else "both"
    settings = training.settings_of(
        out, resume, force, given, Trained.stored_settings, partial(language_settings, reading)
    )
    if resume and not titles_only and Run(out).config.exists():
        reading = clusters.read_by(out, pairs)
    console = Listening()
    written = clusters.cluster(pairs, out, settings, reading, resume=resume, force=force, console=console)
    if written is None:
        console.print("stopped; continue with --resume")
        raise typer.Exit(130)
    typer.echo(f"clusters written to {written}; `coterie clusters {out}` shows them")
    if clusters.load(written, pairs).random:
        typer.echo(f"these clusters are {RANDOM}; train for longer, with more --epochs", err=True)


@summarize.command()
@takes(Settings, from_preset("best"))
def train(
    data: Data,
    out: training.Out,
    partition: Annotated[
        Path | None,
        Option(
            help="clusters: a file, or the folder of `coterie summarize cluster`; they stay fixed unless "
            "--head-option reorganize_every=auto, or a number of updates, is given"
        ),
    ] = None,
    resume: training.Resume = False,
    force: training.Force = False,
    *,
    given: dict[str, Any],
) -> None:
    """Train a summarizer. Defaults are those of the preset "best"; with --resume, the run's own."""
    from coterie.clustering.partition import Partition
    from coterie_lab.data.pairs import Pairs
    from coterie_lab.tasks.summarization import clusters
    from coterie_lab.tasks.summarization.train import train as train_into
    from coterie_lab.tasks.summarization.trained import Trained
    from coterie_lab.training.run import Run

    new = partial(from_preset, clusters=partition is not None)
    settings = training.settings_of(out, resume, force, given, Trained.stored_settings, new)
    pairs = Pairs.open(data)
    seats: Partition | None = None
    if partition is not None:
        seats = clusters.load(partition, pairs)
    elif resume and Run(out).partition.exists():
        seats = Partition.load(Run(out).partition)
    training.carry_out(partial(train_into, pairs, out, settings, seats), out, resume, force)


@summarize.command()
@takes(Decoding)
def generate(
    run: Annotated[Path, Argument(metavar="RUN", help="a run's folder, from `coterie summarize train`")],
    text: Annotated[Path | None, Argument(metavar="FILE", help="a sentence a line; standard input otherwise")] = None,
    interactive: Annotated[bool, Option("--interactive", help="answer each line at once")] = False,
    duc: Annotated[bool, Option("--duc", help="write exactly --length words, as DUC-2004 is scored")] = False,
    device: OnDevice = "auto",
    *,
    given: dict[str, Any],
) -> None:
    """Write a title for each line."""
    from coterie_lab.data.reading import lines, standard_input
    from coterie_lab.tasks.summarization.trained import Trained

    decoding = Decoding(end=not duc, **given)
    trained = Trained.open(run, device)  # type: ignore[arg-type]
    sentences: Iterator[str] = lines(text) if text is not None else standard_input()
    # One line at a time in interactive use.
    for few in ([line] for line in sentences) if interactive else (sentences,):
        for title in trained.summarize(few, decoding):
            typer.echo(title)
            sys.stdout.flush()


summarize.command()(score)
