"""The commands `coterie summarize …`: what they take and print."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from coterie_lab.commands import training as command
from coterie_lab.commands.language import OnDevice
from coterie_lab.commands.prepare_pairs import prepare
from coterie_lab.commands.score import score

summarize = typer.Typer(no_args_is_help=True, help="Sentence summarization: from pairs of text to titles and scores.")
summarize.command()(prepare)
summarize.command()(score)

Data = Annotated[Path, Argument(metavar="DATA", help="a folder from `coterie summarize prepare`")]


@summarize.command()
def cluster(
    context: typer.Context,
    data: Data,
    out: Annotated[Path, Option(metavar="RUN", help="the language model's folder; its clusters are in clusters.json")],
    resume: command.Resume = False,
    force: command.Force = False,
    titles_only: Annotated[
        bool, Option("--titles-only", help="as in the paper; otherwise each sentence is read before its title")
    ] = False,
    preset: Annotated[str | None, Option(help="of the language model: best (the default) or paper")] = None,
    epochs: Annotated[int | None, Option(min=1)] = None,
    hidden: Annotated[int | None, Option(help="width of the LSTM")] = None,
    embedding: Annotated[int | None, Option(help="width of the words that go in")] = None,
    sequences: Annotated[int | None, Option(help="streams of text read side by side")] = None,
    seed: Annotated[int | None, Option()] = None,
    device: Annotated[str | None, Option(help="auto, cpu or cuda")] = None,
    head_option: command.HeadOption = None,
) -> None:
    """Learns clusters from the pairs' text, with a language model; `train --partition RUN` then uses them."""
    from coterie_lab.data.pairs import Pairs, Reading
    from coterie_lab.tasks.language.settings import Settings
    from coterie_lab.tasks.language.train import stored_settings
    from coterie_lab.tasks.summarization.clusters import cluster as learn
    from coterie_lab.tasks.summarization.clusters import language_settings, read_by
    from coterie_lab.training.logs import Listening
    from coterie_lab.training.run import Run

    command.one_of(resume, force, out)
    given = command.given(context)
    console = Listening()
    pairs = Pairs.open(data)
    reading: Reading = "titles" if titles_only else "both"
    if resume and Run(out).config.exists():
        settings = Settings.from_dict(command.added(stored_settings(out).to_dict(), given))
        reading = "titles" if titles_only else read_by(out, pairs)
    else:
        settings = language_settings(reading, **given)
    written = learn(pairs, out, settings, reading, resume=resume, force=force, console=console)
    if written is None:
        console.print("stopped; go on with --resume")
        raise typer.Exit(130)
    typer.echo(f"clusters written to {written}; `coterie clusters {out}` shows them")


@summarize.command()
def train(
    context: typer.Context,
    data: Data,
    out: command.Out,
    partition: Annotated[
        Path | None,
        Option(
            help="clusters: a file, or the folder of `coterie summarize cluster`; they stay as they are, or with "
            "--head-option reorganize_every=100 are where words move on from"
        ),
    ] = None,
    resume: command.Resume = False,
    force: command.Force = False,
    preset: command.Preset = None,
    head: command.Head = None,
    head_option: command.HeadOption = None,
    epochs: command.Number = None,
    embedding: command.EmbeddingWidth = None,
    hidden: command.HiddenWidth = None,
    bidirectional: Annotated[bool | None, Option("--bidirectional/--one-way", help="read from both ends")] = None,
    look_at_words: Annotated[bool | None, Option(help="the attention sees the words beside what was read")] = None,
    input_feeding: Annotated[
        bool | None, Option(help="what the head was given for a word goes in beside it; trains slower")
    ] = None,
    dropout: command.Share = None,
    tied: command.Tied = None,
    initial_range: command.InitialRange = None,
    settle: command.Settle = None,
    batch: Annotated[int | None, Option(help="pairs")] = None,
    optimizer: command.Optimizer = None,
    learning_rate: command.Share = None,
    schedule: command.Schedule = None,
    warmup: command.Warmup = None,
    clip: command.Clip = None,
    weight_decay: command.Share = None,
    precision: command.Precision = None,
    device: command.Device = None,
    seed: command.Number = None,
    log_every: command.LogEvery = None,
    evaluate_every: command.EvaluateEvery = None,
    patience: command.Patience = None,
    keep: command.Keep = None,
    checkpoint_every: command.CheckpointEvery = None,
    graph: command.Graph = None,
) -> None:
    """Trains a summarizer; what is not given comes from the preset, or with --resume from the run itself."""
    from coterie.clustering.partition import Partition
    from coterie_lab.data.pairs import Pairs
    from coterie_lab.tasks.summarization import clusters
    from coterie_lab.tasks.summarization.settings import Settings, from_preset
    from coterie_lab.tasks.summarization.train import PARTITION, stored_settings
    from coterie_lab.tasks.summarization.train import train as run_training
    from coterie_lab.training.run import Run

    command.one_of(resume, force, out)
    given = command.given(context)
    if resume and Run(out).config.exists():
        settings = Settings.from_dict(command.added(stored_settings(out).to_dict(), given))
    else:
        settings = from_preset(**{"preset": "best", **given}, clusters=partition is not None)
    pairs = Pairs.open(data)
    seats: Partition | None = None
    if partition is not None:
        seats = clusters.load(partition, pairs)
    elif resume and (out / PARTITION).exists():
        seats = Partition.load(out / PARTITION)
    command.carry_out(
        lambda console, world: run_training(
            pairs, out, settings, seats, resume=resume, force=force, console=console, world=world
        ),
        out,
    )


@summarize.command()
def generate(
    run: Annotated[Path, Argument(metavar="RUN", help="a run's folder, from `coterie summarize train`")],
    text: Annotated[Path | None, Argument(metavar="[FILE]", help="a sentence a line; standard input otherwise")] = None,
    interactive: Annotated[bool, Option("--interactive", help="answer each line at once")] = False,
    beam: Annotated[int, Option(min=1, help="hypotheses kept")] = 5,
    length: Annotated[int, Option(min=1, help="the most words of a title")] = 30,
    duc: Annotated[
        bool, Option("--duc", help="titles do not end: exactly --length words, as DUC-2004 is scored")
    ] = False,
    length_penalty: Annotated[float, Option(min=0.0, max=10.0, help="compare titles by log P / length ^ this")] = 0.5,
    replace_unknown: Annotated[
        bool, Option("--replace-unknown", help="for <unk>, the word of the sentence that was looked at")
    ] = False,
    batch: Annotated[int, Option(min=1, help="sentences searched side by side")] = 32,
    device: OnDevice = "auto",
) -> None:
    """Writes one title for each line."""
    from coterie_lab.data.lines import lines, standard_input
    from coterie_lab.tasks.summarization.generate import Decoding
    from coterie_lab.tasks.summarization.generate import summarize as write
    from coterie_lab.tasks.summarization.trained import Trained

    trained = Trained.open(run, device)  # type: ignore[arg-type]
    decoding = Decoding(beam, length, not duc, length_penalty, replace_unknown, batch)
    given: Iterator[str] = lines(text) if text is not None else standard_input()
    # One line at a time when somebody waits for the answer.
    for few in ([line] for line in given) if interactive else (given,):
        for title in write(trained, few, decoding):
            typer.echo(title)
            sys.stdout.flush()
