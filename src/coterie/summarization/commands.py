"""The commands `coterie summarize …`: what they take and print."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from coterie.lm.commands import OnDevice, parse_option
from coterie.summarization.prepare_command import prepare
from coterie.summarization.score_command import score

summarize = typer.Typer(no_args_is_help=True, help="Sentence summarization: from pairs of text to titles and scores.")
summarize.command()(prepare)
summarize.command()(score)

Data = Annotated[Path, Argument(metavar="DATA", help="a folder from `coterie summarize prepare`")]
Resume = Annotated[bool, Option("--resume", help="go on where the run stopped")]
Force = Annotated[bool, Option("--force", help="replace the run that is there")]
HeadOption = Annotated[
    list[str] | None, Option(metavar="NAME=VALUE", help="of the head, such as label_smoothing=0.1; repeat it")
]


@summarize.command()
def cluster(
    context: typer.Context,
    data: Data,
    out: Annotated[Path, Option(metavar="RUN", help="the language model's folder; its clusters are in clusters.json")],
    resume: Resume = False,
    force: Force = False,
    preset: Annotated[str, Option(help="of the language model: best or paper")] = "best",
    epochs: Annotated[int | None, Option(min=1)] = None,
    hidden: Annotated[int | None, Option(help="width of the LSTM")] = None,
    embedding: Annotated[int | None, Option(help="width of the words that go in")] = None,
    sequences: Annotated[int | None, Option(help="streams of titles read side by side")] = None,
    seed: Annotated[int | None, Option()] = None,
    device: Annotated[str | None, Option(help="auto, cpu or cuda")] = None,
    head_option: HeadOption = None,
) -> None:
    """Learns clusters from the titles alone, with a language model; `train --partition RUN` then uses them, fixed."""
    from coterie.lm.settings import Settings
    from coterie.lm.train import stored_settings
    from coterie.summarization.clusters import cluster as learn
    from coterie.summarization.clusters import title_settings
    from coterie.summarization.corpus import Pairs

    given = _given(context, "preset", head_option)
    console = Console(stderr=True)
    if resume and out.exists():
        settings = Settings.from_dict({**stored_settings(out).to_dict(), **given})
    else:
        settings = title_settings(preset, **given)
    written = learn(Pairs.open(data), out, settings, resume=resume, force=force, console=console)
    if written is None:
        console.print("stopped; go on with --resume")
        raise typer.Exit(130)
    typer.echo(f"clusters written to {written}; `coterie clusters {out}` shows them")


@summarize.command()
def train(
    context: typer.Context,
    data: Data,
    out: Annotated[Path, Option(metavar="RUN", help="the run's folder: everything is written there")],
    partition: Annotated[
        Path | None, Option(help="clusters that stay as they are: a file, or the folder of `coterie summarize cluster`")
    ] = None,
    resume: Resume = False,
    force: Force = False,
    preset: Annotated[str | None, Option(help="best (the default), or paper: as printed")] = None,
    head: Annotated[str | None, Option(help="the softmax: self-organized, full, adaptive, …")] = None,
    head_option: HeadOption = None,
    epochs: Annotated[int | None, Option()] = None,
    embedding: Annotated[int | None, Option(help="width of the words that go in")] = None,
    hidden: Annotated[int | None, Option(help="width of the LSTMs")] = None,
    bidirectional: Annotated[bool | None, Option("--bidirectional/--one-way", help="read from both ends")] = None,
    dropout: Annotated[float | None, Option()] = None,
    tied: Annotated[bool | None, Option("--tied/--untied", help="one matrix for words in and out")] = None,
    initial_range: Annotated[float | None, Option(help="weights start uniform in ± this")] = None,
    batch: Annotated[int | None, Option(help="pairs")] = None,
    optimizer: Annotated[str | None, Option(help="adagrad, adam or adamw")] = None,
    learning_rate: Annotated[float | None, Option()] = None,
    schedule: Annotated[str | None, Option(help="constant, halving, cosine or linear")] = None,
    warmup: Annotated[int | None, Option(help="updates over which the learning rate rises")] = None,
    clip: Annotated[float | None, Option(help="the most the gradient's norm may be; 0: any")] = None,
    weight_decay: Annotated[float | None, Option()] = None,
    precision: Annotated[str | None, Option(help="auto, float32 or bfloat16")] = None,
    device: Annotated[str | None, Option(help="auto, cpu or cuda")] = None,
    seed: Annotated[int | None, Option()] = None,
    log_every: Annotated[int | None, Option(help="updates between lines of the log")] = None,
    evaluate_every: Annotated[int | None, Option(help="updates between evaluations, beside each epoch's")] = None,
    patience: Annotated[int | None, Option(help="stop after so many evaluations without a better one")] = None,
    checkpoint_every: Annotated[
        float | None, Option(help="seconds between checkpoints; after an epoch, a twentieth")
    ] = None,
    graph: Annotated[bool | None, Option(help="on a GPU, replay the update as CUDA graphs")] = None,
) -> None:
    """Trains a summarizer; what is not given comes from the preset, or with --resume from the run itself."""
    from coterie.partition import Partition
    from coterie.summarization import clusters
    from coterie.summarization.corpus import Pairs
    from coterie.summarization.settings import Settings, from_preset
    from coterie.summarization.train import PARTITION, stored_settings
    from coterie.summarization.train import train as run_training
    from coterie.training import distributed

    if resume and force:
        raise ValueError("--resume goes on with a run, --force replaces it: give one of them")
    given = _given(context, "partition", head_option)
    if resume and preset is None and out.exists():
        settings = Settings.from_dict({**stored_settings(out).to_dict(), **given})
    else:
        settings = from_preset(preset or "best", **given)
    pairs = Pairs.open(data)
    seats: Partition | None = None
    if partition is not None:
        seats = clusters.load(partition, pairs)
    elif resume and (out / PARTITION).exists():
        seats = Partition.load(out / PARTITION)
    world = distributed.join()
    try:
        console = Console(stderr=True)
        progress = run_training(
            pairs,
            out,
            settings,
            seats,
            resume=resume,
            force=force,
            console=console if world.main else None,
            world=world,
        )
    finally:
        distributed.leave(world)
    if not world.main:
        return
    if not progress.finished:
        console.print(f"stopped at update {progress.step:,}; go on with --resume", highlight=False)
        raise typer.Exit(130)
    best = progress.best
    typer.echo(
        f"perplexity {best['perplexity']:.2f} after update {best['step']:,}; {progress.seconds / 60:.1f} minutes of "
        f"training; written to {out}"
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
    length_penalty: Annotated[float, Option(min=0.0, help="compare titles by log P / length ^ this")] = 0.0,
    replace_unknown: Annotated[
        bool, Option("--replace-unknown", help="for <unk>, the word of the sentence that was looked at")
    ] = False,
    batch: Annotated[int, Option(min=1, help="sentences searched side by side")] = 32,
    device: OnDevice = "auto",
) -> None:
    """Writes one title for each line."""
    from coterie.summarization.generate import Decoding
    from coterie.summarization.generate import summarize as write
    from coterie.summarization.sources import lines
    from coterie.summarization.trained import Trained

    trained = Trained.open(run, device)  # type: ignore[arg-type]
    decoding = Decoding(beam, length, not duc, length_penalty, replace_unknown, batch)
    given: Iterator[str] = lines(text) if text is not None else (line.rstrip("\n") for line in sys.stdin)
    # One line at a time when somebody waits for the answer.
    for few in ([line] for line in given) if interactive else (given,):
        for title in write(trained, few, decoding):
            typer.echo(title)
            sys.stdout.flush()


def _given(context: typer.Context, apart: str, head_option: list[str] | None) -> dict[str, Any]:
    """The settings that were given on the command line."""
    left_out = ("data", "out", "resume", "force", "preset", "head_option", apart)
    given = {name: value for name, value in context.params.items() if value is not None and name not in left_out}
    if given.get("clip") == 0:
        given["clip"] = None
    if head_option:
        given["head_options"] = dict(map(parse_option, head_option))
    return given
