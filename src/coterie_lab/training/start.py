"""Carries out a run: creates or resumes its folder, trains, and writes the result."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import torch
from rich.console import Console

from coterie_lab.training.device import choose_device
from coterie_lab.training.distributed import World
from coterie_lab.training.logs import Bar
from coterie_lab.training.loop import Progress, Trainer
from coterie_lab.training.run import Run, alone, read_json, write_json, write_whole
from coterie_lab.training.settings import ModelSettings
from coterie_lab.training.task import Task

# Settings that may change when a run is resumed.
FREE = ("device", "checkpoint_every", "graph", "evaluate_at", "evaluate_moves")
AnySettings = TypeVar("AnySettings", bound=ModelSettings)


class How(TypedDict, total=False):
    """How to start a run, and where to show it."""

    resume: bool  # the run that is there, whose settings must be these
    force: bool  # replace the run that is there
    console: Console | None
    world: World | None


@dataclass(frozen=True)
class Data:
    """The data of a run, as its folder records them."""

    kind: str  # of run
    path: Path
    fingerprint: dict[str, Any]  # what tells it from other data
    files: dict[str, str] = field(default_factory=dict)  # name and content: what the run's folder keeps of it


def train(
    task: Callable[[AnySettings, torch.device, World], Task],
    data: Data,
    out: Path,
    settings: AnySettings,
    *,
    resume: bool = False,
    force: bool = False,
    console: Console | None = None,
    world: World | None = None,
) -> Progress:
    """Trains into the folder `out`. Resuming a finished run changes nothing."""
    run, world = Run(out), world or World()
    gc.collect()  # an earlier run of this process, which would count as this one's memory
    device = choose_device(settings.device, world.local_rank)
    finished = world.everyone(resume and run.result.exists())[0]  # the main process's view of the disk
    # The task is made first: an error in it leaves the folder as it was.
    made = None if finished else task(settings, device, world)
    with ExitStack() as held:
        world.by_main(lambda: _folder(data, out, settings, resume, force, held))
        if made is None:
            result = read_json(run.result)
            return Progress(result["updates"], result["training_seconds"], best=result["best"], finished=True)
        trainer = Trainer(made, settings, run, device, world)
        if resume:
            trainer.resume()
        world.by_main(run.started)
        with Bar(console if world.main else None, settings.head, trainer.total, trainer.progress.step) as bar:
            progress = trainer.fit(bar)
        if progress.finished:
            result = {
                "best": progress.best, "updates": progress.step, "training_seconds": progress.seconds,
                "starting_seconds": progress.starting, "peak_memory": progress.memory or None,
                "random_clusters": made.clusters_are_random(),
            }  # fmt: skip
            world.by_main(lambda: write_json(run.result, result))
    world.everyone(None)  # all leave together: a connection that breaks ends a process with an error
    return progress


def _folder(data: Data, out: Path, settings: ModelSettings, resume: bool, force: bool, held: ExitStack) -> None:
    """Creates or opens the run's folder, with what it keeps of the data, and locks it until `held` is closed."""
    if not out.exists():
        out.mkdir(parents=True, exist_ok=True)
    if out.is_dir():  # locked before anything is written: another process may be about to do the same
        held.enter_context(alone(out))
    content = {"settings": settings.to_dict(), "corpus": {"path": str(data.path.resolve()), **data.fingerprint}}
    if not (resume and Run(out).config.exists()):  # a run killed before it had begun begins now
        Run.create(out, data.kind, content, force)
    else:
        _check_same(data, out, settings)
    for name, text in data.files.items():
        write_whole(out / name, text)


def _check_same(data: Data, out: Path, settings: ModelSettings) -> None:
    """Refuses a run of other data or other settings."""
    _, stored = Run.open(out, data.kind)
    for name, new in data.fingerprint.items():
        if (old := stored["corpus"].get(name)) != new:
            raise ValueError(
                f"{out} was trained on another text than {data.path} ({name.replace('_', ' ')} {old}, not {new}): give "
                "that one, or another --out"
            )
    before = type(settings).from_dict(stored["settings"])
    for one in fields(settings):
        old, new = getattr(before, one.name), getattr(settings, one.name)
        if old != new and one.name not in FREE:
            raise ValueError(
                f"{out} was started with {one.name} {old}, not {new}: leave it out, or choose another --out"
            )
