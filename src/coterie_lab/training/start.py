"""A run from its folder to its result: made or found, trained, and what came out noted."""

from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from coterie_lab.training.distributed import World
from coterie_lab.training.logs import Bar, Silent
from coterie_lab.training.loop import Progress, Task, Trainer
from coterie_lab.training.run import Run, alone, write_whole
from coterie_lab.training.settings import TrainingSettings

# What may change when a run goes on.
FREE = ("device", "checkpoint_every", "graph")


@dataclass(frozen=True)
class Data:
    """What a run is trained on."""

    kind: str  # of run
    path: Path
    fingerprint: dict[str, Any]  # what tells it from other data
    files: dict[str, str] = field(default_factory=dict)  # name and content: what the run's folder keeps of it


def train(
    task: Task,
    data: Data,
    out: Path,
    settings: TrainingSettings,
    device: torch.device,
    *,
    name: str,
    resume: bool = False,
    force: bool = False,
    console: Console | None = None,
    world: World,
) -> Progress:
    """Trains into the folder `out`; `resume`: goes on with the run that is there, whose settings must be these.

    `name`: what the bar says. The task is built before: what is wrong with it spoils no folder.
    """
    run = Run(out)
    with ExitStack() as held:
        world.by_main(lambda: _folder(data, out, settings, resume, force, held))
        trainer = Trainer(task, settings, run, device, Silent(), world)
        if resume:
            trainer.resume()
        world.by_main(run.started)
        if console is None or not world.main:
            progress = trainer.fit()
        else:
            with Bar(console, name, trainer.total, trainer.progress.step) as trainer.display:
                progress = trainer.fit()
        if progress.finished:
            result = {"best": progress.best, "updates": progress.step, "training_seconds": progress.seconds}
            world.by_main(lambda: run.finish(result))
    world.from_main(None)  # nobody leaves before the others: connections cut short end a process with an error
    return progress


def _folder(data: Data, out: Path, settings: TrainingSettings, resume: bool, force: bool, held: ExitStack) -> None:
    """The run's folder, made or found, with what it keeps of the data; nobody else trains into it while it is held."""
    if not out.exists():
        out.mkdir(parents=True, exist_ok=True)
    if out.is_dir():  # held before anything is written: another process may be about to do the same
        held.enter_context(alone(out))
    content = {"settings": settings.to_dict(), "corpus": {"path": str(data.path.resolve()), **data.fingerprint}}
    if not (resume and Run(out).config.exists()):  # a run killed before it had begun begins now
        Run.create(out, data.kind, content, force)
    else:
        reopen(data, out, settings)
    for name, text in data.files.items():
        write_whole(out / name, text)


def reopen(data: Data, out: Path, settings: TrainingSettings) -> Run:
    """The run that is there; refused if it is of other data or other settings."""
    run, stored = Run.open(out, data.kind)
    for name, new in data.fingerprint.items():
        if (old := stored["corpus"].get(name, new)) != new:
            raise ValueError(
                f"{out} was trained on another text than {data.path} ({name.replace('_', ' ')} {old}, not {new}): give "
                "that one, or another --out"
            )
    before = type(settings).from_dict(stored["settings"])
    for one in fields(settings):
        if one.name == "preset" and one.name not in stored["settings"]:
            continue  # a run of before it was noted
        old, new = getattr(before, one.name), getattr(settings, one.name)
        if old != new and one.name not in FREE:
            raise ValueError(
                f"{out} was started with {one.name} {old}, not {new}: leave it out, or choose another --out"
            )
    return run
