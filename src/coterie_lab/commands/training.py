"""What every command that trains takes and does: its options, the settings they make, and what is said of the run."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer import Option

if TYPE_CHECKING:
    from coterie_lab.training.distributed import World
    from coterie_lab.training.loop import Progress

Out = Annotated[Path, Option(metavar="RUN", help="the run's folder: everything is written there")]
Resume = Annotated[bool, Option("--resume", help="go on where the run stopped")]
Force = Annotated[bool, Option("--force", help="replace the run that is there")]
Preset = Annotated[str | None, Option(help="best (the default), or paper: as printed")]
Head = Annotated[str | None, Option(help="the softmax: self-organized, full, importance, nce, adaptive, …")]
HeadOption = Annotated[
    list[str] | None, Option(metavar="NAME=VALUE", help="of the head, such as reorganize_every=250; repeat it")
]
Number = Annotated[int | None, Option()]
Share = Annotated[float | None, Option()]
EmbeddingWidth = Annotated[int | None, Option(help="width of the words that go in")]
HiddenWidth = Annotated[int | None, Option(help="width of the LSTM")]
Tied = Annotated[bool | None, Option("--tied/--untied", help="one matrix for words in and out")]
InitialRange = Annotated[float | None, Option(help="weights start uniform in ± this")]
Optimizer = Annotated[str | None, Option(help="adagrad, adam or adamw")]
Schedule = Annotated[str | None, Option(help="constant, halving, cosine or linear")]
Warmup = Annotated[int | None, Option(help="updates over which the learning rate rises")]
Clip = Annotated[float | None, Option(help="the most the gradient's norm may be; 0: any")]
Precision = Annotated[str | None, Option(help="auto, float32 or bfloat16")]
Device = Annotated[str | None, Option(help="auto, cpu or cuda")]
LogEvery = Annotated[int | None, Option(help="updates between lines of the log")]
EvaluateEvery = Annotated[int | None, Option(help="updates between evaluations, beside each epoch's")]
Patience = Annotated[int | None, Option(help="stop after so many evaluations without a better one")]
Keep = Annotated[str | None, Option(help="the model to leave for use: the best, or the last")]
Settle = Annotated[float | None, Option(help="share of the run after which words keep their clusters; lm: 0.7")]
CheckpointEvery = Annotated[float | None, Option(help="seconds between checkpoints; after an epoch, a twentieth")]
Graph = Annotated[bool | None, Option(help="on a GPU, replay the update as a CUDA graph")]

APART = ("data", "out", "partition", "titles_only", "resume", "force", "head_option")  # no settings


def given(context: typer.Context) -> dict[str, Any]:
    """The settings that were given on the command line."""
    found = {name: value for name, value in context.params.items() if value is not None and name not in APART}
    if found.get("clip") == 0:
        found["clip"] = None
    if options := context.params.get("head_option"):
        found["head_options"] = dict(map(parse_option, options))
    return found


def added(stored: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that is there with what was given again; options of the head that were not are its own."""
    options = {**stored["head_options"], **given.get("head_options", {})}
    return {**stored, **given, "head_options": options}


def parse_option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON has it, or a word."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"an option takes NAME=VALUE; got {text!r}")
    try:
        return name, json.loads({"None": "null", "True": "true", "False": "false"}.get(value, value))
    except json.JSONDecodeError:
        return name, value


def one_of(resume: bool, force: bool, out: Path) -> None:
    """Refuses both, and says where there is nothing to go on with."""
    if resume and force:
        raise ValueError("--resume goes on with a run, --force replaces it: give one of them")
    if resume and not out.exists() and os.environ.get("RANK", "0") == "0":
        typer.echo(f"there is no run at {out} yet: it begins now", err=True)


def carry_out(train: "Callable[[Console | None, World], Progress]", out: Path) -> None:
    """Trains, in one process or in the several that `torchrun` started, and says what came of it."""
    from coterie_lab.training import distributed  # when it is needed: PyTorch takes seconds to load
    from coterie_lab.training.logs import Listening

    console = Listening()
    world = distributed.join()
    try:
        progress = train(console if world.main else None, world)
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
