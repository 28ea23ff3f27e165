"""The commands `coterie lm …`, `coterie clusters` and `coterie reproduce`: what they take and print."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from coterie_lab.commands import training as command
from coterie_lab.commands.prepare import prepare

lm = typer.Typer(no_args_is_help=True, help="Language models: from text to a trained model, and its use.")
lm.command()(prepare)

RunFolder = Annotated[Path, Argument(metavar="RUN", help="a run's folder, from `coterie lm train`")]
OnDevice = Annotated[str, Option("--device", help="auto, cpu or cuda")]
AsJson = Annotated[bool, Option("--json", help="as JSON")]


@lm.command()
def train(
    context: typer.Context,
    data: Annotated[Path, Argument(metavar="DATA", help="a folder from `coterie lm prepare`")],
    out: command.Out,
    resume: command.Resume = False,
    force: command.Force = False,
    preset: command.Preset = None,
    head: command.Head = None,
    head_option: command.HeadOption = None,
    epochs: command.Number = None,
    embedding: command.EmbeddingWidth = None,
    hidden: command.HiddenWidth = None,
    layers: Annotated[int | None, Option(help="of the LSTM")] = None,
    dropout: command.Share = None,
    tied: command.Tied = None,
    initial_range: command.InitialRange = None,
    settle: command.Settle = None,
    sequences: Annotated[int | None, Option(help="streams of text read side by side")] = None,
    length: Annotated[int | None, Option(help="steps of a batch")] = None,
    optimizer: command.Optimizer = None,
    learning_rate: command.Share = None,
    schedule: command.Schedule = None,
    warmup: command.Warmup = None,
    clip: command.Clip = None,
    clip_embedding: Annotated[bool | None, Option(help="whether the embedding counts in that norm")] = None,
    weight_decay: Annotated[float | None, Option(help="of the LSTM's weights")] = None,
    accumulator: Annotated[float | None, Option(help="where Adagrad's sums start")] = None,
    row_accumulator: Annotated[bool | None, Option(help="Adagrad: one sum for each word of the embedding")] = None,
    projection_factor: Annotated[float | None, Option(help="on the learning rate of the head's projections")] = None,
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
    """Trains a language model; what is not given comes from the preset, or with --resume from the run itself."""
    from coterie_lab.data.corpus import Corpus
    from coterie_lab.tasks.language.settings import Settings, from_preset
    from coterie_lab.tasks.language.train import stored_settings
    from coterie_lab.tasks.language.train import train as run_training
    from coterie_lab.training.run import Run

    command.one_of(resume, force, out)
    given = command.given(context)
    if resume and Run(out).config.exists():
        settings = Settings.from_dict(command.added(stored_settings(out).to_dict(), given))
    else:
        settings = from_preset(**{"preset": "best", **given})
    corpus = Corpus.open(data)
    command.carry_out(
        lambda console, world: run_training(
            corpus, out, settings, resume=resume, force=force, console=console, world=world
        ),
        out,
    )


@lm.command("eval")
def evaluate(
    run: RunFolder,
    data: Annotated[Path | None, Option(help="the corpus; otherwise the one it was trained on")] = None,
    part: Annotated[str, Option(help="dev, test or train")] = "dev",
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Perplexity, of the clusters and inside them, and by how frequent the words are."""
    from coterie_lab.data.corpus import Corpus
    from coterie_lab.tasks.language.evaluate import evaluate as measure
    from coterie_lab.tasks.language.trained import Trained
    from coterie_lab.training.device import choose_precision, precise

    trained = Trained.open(run, device)  # type: ignore[arg-type]
    if data is None and not Path(trained.corpus["path"]).exists():
        raise ValueError(f"the text of {run} is no longer at {trained.corpus['path']}: say where it is with --data")
    corpus = Corpus.open(data or trained.corpus["path"])
    if corpus.words != trained.words:
        raise ValueError(f"{corpus.path} has another vocabulary than {run}: prepare the text as that one was")
    ids = {"dev": corpus.dev, "test": corpus.test, "train": corpus.train}.get(part)
    if ids is None:
        raise ValueError(f"{corpus.path} has no part {part!r}: use dev, train, or test where there is one")
    with precise(trained.device, choose_precision(trained.settings.precision, trained.device)):
        found = measure(trained.model, ids, trained.counts)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "part": part, **found.to_dict()}, indent=1))
        return
    table = Table(title=f"{found.words:,} words of {corpus.path.name}/{part}")
    table.add_column("")
    table.add_column("share of the text", justify="right")
    table.add_column("perplexity", justify="right")
    table.add_row("all words", "", f"{found.perplexity:.2f}")
    if found.cluster_perplexity is not None:
        table.add_row("  of the cluster", "", f"{found.cluster_perplexity:.2f}")
        table.add_row("  inside the cluster", "", f"{found.in_cluster_perplexity:.2f}")
    for band in found.bands:
        table.add_row(f"words {band.words} by frequency", f"{band.share:.1%}", f"{band.perplexity:.2f}")
    Console().print(table)


@lm.command()
def generate(
    run: RunFolder,
    prompt: Annotated[str, Option(help="what to go on from")] = "",
    length: Annotated[int, Option(min=1, help="words to write")] = 50,
    temperature: Annotated[float, Option(min=0.0, help="0: always the most probable word")] = 1.0,
    top_k: Annotated[int | None, Option(min=1, help="only the k most probable words")] = None,
    top_p: Annotated[float | None, Option(help="only the most probable words that make up this mass")] = None,
    seed: Annotated[int | None, Option(min=0, max=2**63 - 1, help="the same seed gives the same words")] = None,
    device: OnDevice = "auto",
) -> None:
    """Writes on from a prompt, word by word."""
    from coterie_lab.tasks.language.generate import generate as write
    from coterie_lab.tasks.language.trained import Trained

    trained = Trained.open(run, device)  # type: ignore[arg-type]
    words = write(trained, prompt, length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    for number, word in enumerate(words):
        if number == 0 and prompt.strip():
            typer.echo(prompt.strip(), nl=False)
        typer.echo(f" {word}" if number or prompt.strip() else word, nl=False)
        sys.stdout.flush()
    typer.echo()


@lm.command()
def score(run: RunFolder, device: OnDevice = "auto", as_json: AsJson = False) -> None:
    """The log-probability of each line of standard input; its first word is read, not scored.

    Prints log P, the words scored and the unknown words, with tabs between."""
    from coterie_lab.data.lines import standard_input
    from coterie_lab.tasks.language.score import score as rate
    from coterie_lab.tasks.language.trained import Trained

    trained = Trained.open(run, device)  # type: ignore[arg-type]
    for found in rate(trained, standard_input()):
        if as_json:
            typer.echo(json.dumps(asdict(found)))
        else:
            typer.echo(f"{found.log_prob:.4f}\t{found.words}\t{found.unknown}")


def clusters(
    run: RunFolder,
    words: Annotated[list[str] | None, Argument(metavar="[WORD]...", help="whose company to show")] = None,
    n: Annotated[int, Option("--n", min=1, help="clusters to show when no word is given")] = 8,
    length: Annotated[int, Option(min=1, help="words to show of a cluster")] = 12,
    everything: Annotated[bool, Option("--all", help="all clusters with all their words")] = False,
    as_json: AsJson = False,
) -> None:
    """The clusters that the words of a trained model found; of a word, its company."""
    from coterie_lab.tasks.language import clusters as finder
    from coterie_lab.tasks.language.trained import Trained

    trained = Trained.open(run, "cpu")
    if words:
        companies = [finder.company(trained, word, length) for word in words]
        if as_json:
            typer.echo(json.dumps([asdict(one) for one in companies], indent=1, ensure_ascii=False))
            return
        for one in companies:
            typer.echo(f"{one.word}: cluster {one.cluster.number}, {one.cluster.size} words: {_list(one.cluster)}")
            typer.echo(f"  nearest in it: {' '.join(one.neighbours)}")
            for other in one.next_best:
                typer.echo(f"  next best: cluster {other.number}: {_list(other)}")
        return
    found = finder.clusters(trained) if everything else finder.table(trained, n, length)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False))
        return
    for cluster in found:
        typer.echo(f"{cluster.number:>5}  {cluster.share:6.2%}  {_list(cluster)}")


def reproduce(
    experiment: Annotated[
        str,
        Argument(metavar="EXPERIMENT", help="text8, wikitext2, summarization, or generated: a language made for it"),
    ],
    out: Annotated[Path, Option(metavar="DIR", help="runs and report are written there")],
    source: Annotated[
        str | None, Argument(metavar="[SRC]", help="the text or pairs, what `prepare` made of them, or text8")
    ] = None,
    heads: Annotated[str, Option(help="what to compare, with commas between")] = "full,self-organized",
    seeds: Annotated[str, Option(help="with commas between; each is a run of every head")] = "0",
    epochs: Annotated[int | None, Option(min=1)] = None,
    evaluate_every: Annotated[int | None, Option(min=1, help="updates between evaluations, for Figure 1")] = None,
    device: Annotated[str | None, Option(help="auto, cpu or cuda")] = None,
    setting: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="for all runs, as in `coterie lm train`; repeat it")
    ] = None,
    preset: Annotated[str, Option(help="summarization: best, or paper: as printed")] = "best",
    duc: Annotated[
        Path | None, Option(metavar="DIR", help="summarization: DUC-2004's input.txt and task1_ref0.txt …")
    ] = None,
    max_vocab: Annotated[int | None, Option(min=3, help="summarization, of raw pairs: words of the vocabulary")] = None,
    source_words: Annotated[
        bool, Option("--source-words", help="summarization, of raw pairs: fill it up with the sentences' words")
    ] = False,
) -> None:
    """Trains each head in the same trainer and writes the paper's tables and figures as one report.

    Finished runs are not repeated, stopped ones go on."""
    from coterie_lab.experiments.language.experiments import EXPERIMENTS, generated
    from coterie_lab.experiments.language.reproduce import reproduce as compare
    from coterie_lab.experiments.language.variants import chosen
    from coterie_lab.training.logs import Listening

    if experiment not in (*EXPERIMENTS, "summarization"):
        raise ValueError(
            f"there is no experiment {experiment!r}; there are: {', '.join((*EXPERIMENTS, 'summarization'))}"
        )
    if not all(seed.strip().isdigit() for seed in seeds.split(",")):
        raise ValueError(f"--seeds takes whole numbers with commas between; got {seeds!r}")
    named = {"epochs": epochs, "evaluate_every": evaluate_every, "device": device}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    extra = dict(map(command.parse_option, setting or []))
    if taken := [name for name in extra if name in ("head", "seed", "preset", *given)]:
        raise ValueError(f"--setting {taken[0]}: the rows of a comparison say it themselves, or it was given beside")
    given |= extra
    console = Listening()
    names = [name.strip() for name in heads.split(",")]
    numbers = [int(seed) for seed in seeds.split(",")]
    if len(set(numbers)) < len(numbers) or len(set(names)) < len(names):
        raise ValueError(f"every head and every seed once: got --heads {heads} --seeds {seeds}")
    report: object
    if experiment == "summarization":
        from coterie_lab.experiments.summarization.reproduce import Plan
        from coterie_lab.experiments.summarization.reproduce import reproduce as compare_summarizers

        if source is None:
            raise ValueError("summarization needs pairs: give files, a folder, or what `summarize prepare` wrote")
        plan = Plan(preset=preset, max_vocab=max_vocab, source_words=source_words, duc=duc)
        report = compare_summarizers(source, out, names, numbers, console, plan, **given)
    else:
        chosen(names)  # before a text is made for them
        if source is None and experiment == "generated":
            source = str(generated(out).path)
        elif source is None:
            files = (
                "a folder of its train, valid and test files" if EXPERIMENTS[experiment].parts else "a file or text8"
            )
            raise ValueError(f"{experiment} needs its text: give {files}, or a folder from `coterie lm prepare`")
        report = compare(source, out, names, numbers, console, experiment=EXPERIMENTS[experiment], **given)
    if report is None:
        console.print("stopped; the same command goes on")
        raise typer.Exit(130)
    typer.echo(f"written to {out / 'report.md'}")


def _list(cluster: Any) -> str:
    return " ".join(cluster.words)
