"""Shared by the commands that train: the run's folder, new or stored settings, and the result."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Option

from coterie_lab.training.settings import ModelSettings

if TYPE_CHECKING:
    from coterie_lab.training.loop import Progress

S = TypeVar("S", bound=ModelSettings)
Out = Annotated[Path, Option(metavar="RUN", help="the run's folder: everything is written there")]
Resume = Annotated[bool, Option("--resume", help="continue the run where it stopped, with its own settings")]
Force = Annotated[bool, Option("--force", help="replace the run that is there")]


def settings_of(
    out: Path, resume: bool, force: bool, given: dict[str, Any], stored: Callable[[Path], S], new: Callable[..., S]
) -> S:
    """The settings to train with: those of the run that is resumed, or a preset's; what is given replaces them.

    Options of the head that are not given again stay as they were.
    """
    from coterie_lab.training.run import Run

    if resume and force:
        raise ValueError("--resume continues a run, --force replaces it: give one of them")
    check_given(given)
    if resume and not out.exists() and os.environ.get("RANK", "0") == "0":
        typer.echo(f"there is no run at {out} yet: it begins now", err=True)
    if not (resume and Run(out).config.exists()):
        return new(**given)
    before = stored(out)
    return replace(before, **{**given, "head_options": {**before.head_options, **given.get("head_options", {})}})


def check_given(given: dict[str, Any]) -> None:
    """Refuses options that contradict each other."""
    if {"epochs", "updates"} <= given.keys():
        raise ValueError("--epochs and --updates both say how long to train: give one of them")


def carry_out(train: "Callable[..., Progress]", out: Path, resume: bool, force: bool) -> None:
    """Trains, in one process or in the several that `torchrun` started, and prints the result."""
    from coterie_lab.training import distributed
    from coterie_lab.training.logs import Listening

    console = Listening()
    world = distributed.join()
    try:
        progress = train(resume=resume, force=force, console=console if world.main else None, world=world)
    finally:
        distributed.leave(world)
    if not world.main:
        return
    if not progress.finished:
        console.print(f"stopped at update {progress.step:,}; continue with --resume", highlight=False)
        raise typer.Exit(130)
    best = progress.best
    typer.echo(
        f"perplexity {best['perplexity']:.2f} after update {best['step']:,}; {progress.seconds / 60:.1f} minutes of "
        f"training; written to {out}"
    )
