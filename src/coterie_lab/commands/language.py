"""The commands `coterie lm …`: from text to a trained model, and its use."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from coterie_lab.commands import training
from coterie_lab.commands.parameters import takes
from coterie_lab.commands.prepare import prepare_text
from coterie_lab.tasks.language.settings import Settings, from_preset

lm = typer.Typer(no_args_is_help=True, help="Language models: prepare a text, train on it, evaluate, generate, score.")
lm.command("prepare")(prepare_text)

RunFolder = Annotated[Path, Argument(metavar="RUN", help="a run's folder, from `coterie lm train`")]
OnDevice = Annotated[str, Option("--device", help="auto, cpu or cuda")]
AsJson = Annotated[bool, Option("--json", help="print JSON")]


@lm.command()
@takes(Settings, from_preset("best"))
def train(
    data: Annotated[Path, Argument(metavar="DATA", help="a folder from `coterie lm prepare`")],
    out: training.Out,
    resume: training.Resume = False,
    force: training.Force = False,
    *,
    given: dict[str, Any],
) -> None:
    """Train a language model. Defaults are those of the preset "best"; with --resume, the run's own."""
    from coterie_lab.data.corpus import Corpus
    from coterie_lab.tasks.language.train import train as train_into
    from coterie_lab.tasks.language.trained import Trained

    settings = training.settings_of(out, resume, force, given, Trained.stored_settings, from_preset)
    corpus = Corpus.open(data)
    training.carry_out(partial(train_into, corpus, out, settings), out, resume, force)


@lm.command("eval")
def evaluate(
    run: RunFolder,
    data: Annotated[Path | None, Option(help="the corpus; otherwise the one it was trained on")] = None,
    part: Annotated[str, Option(help="dev, test or train")] = "dev",
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure perplexity: of the clusters, inside them, and by how frequent the words are."""
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
        typer.echo(json.dumps({"run": str(run), "part": part, **asdict(found)}, indent=1))
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
    prompt: Annotated[str, Option(help="the text to continue")] = "",
    length: Annotated[int, Option(min=1, help="words to write")] = 50,
    temperature: Annotated[float, Option(min=0.0, help="0: always the most probable word")] = 1.0,
    top_k: Annotated[int | None, Option(min=1, help="only the k most probable words")] = None,
    top_p: Annotated[float | None, Option(help="only the most probable words that make up this mass")] = None,
    seed: Annotated[int | None, Option(min=0, max=2**63 - 1, help="the same seed gives the same words")] = None,
    device: OnDevice = "auto",
) -> None:
    """Continue a prompt, word by word."""
    from coterie_lab.tasks.language.trained import Trained

    trained = Trained.open(run, device)  # type: ignore[arg-type]
    words = trained.generate(prompt, length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    for number, word in enumerate(words):
        if number == 0 and prompt.strip():
            typer.echo(prompt.strip(), nl=False)
        typer.echo(f" {word}" if number or prompt.strip() else word, nl=False)
        sys.stdout.flush()
    typer.echo()


@lm.command()
def score(run: RunFolder, device: OnDevice = "auto", as_json: AsJson = False) -> None:
    """Score each line of standard input by its log-probability; the first word of a line is read, not scored.

    Prints log P, the words scored and the unknown words, with tabs between.
    """
    from coterie_lab.data.reading import standard_input
    from coterie_lab.tasks.language.trained import Trained

    trained = Trained.open(run, device)  # type: ignore[arg-type]
    for found in trained.score(standard_input()):
        if as_json:
            typer.echo(json.dumps(asdict(found)))
        else:
            typer.echo(f"{found.log_prob:.4f}\t{found.words}\t{found.unknown}")
