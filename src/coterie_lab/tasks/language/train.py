"""Trains a language model: the text, the model and the head put into the trainer's hands.

Shapes: V words, B sequences, L steps, D hidden width.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.corpus import VOCABULARY, Corpus, digest
from coterie_lab.data.streams import Streams
from coterie_lab.heads import Material
from coterie_lab.tasks.language.build import build, groups
from coterie_lab.tasks.language.evaluate import evaluate
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.training import distributed, start
from coterie_lab.training.device import choose_device, choose_precision
from coterie_lab.training.distributed import SharedHead, World
from coterie_lab.training.loop import Progress
from coterie_lab.training.optimizers import Group
from coterie_lab.training.run import Run, read_json
from coterie_lab.training.update import precise

KIND = "language model"


class LanguageTask:
    """A language model on a corpus, as the trainer sees it."""

    def __init__(self, corpus: Corpus, settings: Settings, device: torch.device, world: World) -> None:
        if len(corpus.dev) < 2:  # told before an epoch is spent on it
            raise ValueError(
                f"{corpus.path} has {len(corpus.dev)} word(s) for development, and two are the least: prepare the text "
                "with a longer development part"
            )
        self.corpus, self.settings, self.device = corpus, settings, device
        self.streams = Streams(corpus.train, settings.sequences, settings.length, world.rank, world.size)
        if device.type == "cuda":
            self.streams.move(device)
        self.steps_per_epoch = self.streams.steps
        self.words_per_step = settings.sequences * settings.length
        material = Material(vocabulary=corpus.words, text=corpus.train)
        begun = time.perf_counter()
        self.model = build(settings, corpus.counts, material).to(device)
        self.building = time.perf_counter() - begun
        head = self.model.head
        self.shared_head = SharedHead(head, world) if isinstance(head, SelfOrganizedSoftmax) else None
        if isinstance(head, SelfOrganizedSoftmax) and settings.settle < 1:
            head.reorganize_until = round(settings.settle * settings.epochs * self.steps_per_epoch)
        self.graphable = bool(head.graphable)
        self.module: nn.Module = distributed.shared(self.model, world, device)
        if world.rank:
            torch.manual_seed(settings.seed + world.rank)  # each process drops out other units
        shape = (settings.layers, settings.sequences // world.size, settings.hidden)
        self.carried = (torch.zeros(shape, device=device), torch.zeros(shape, device=device))
        self.latest = self.carried

    def groups(self) -> list[Group]:
        """All parameters, in groups that are trained alike."""
        return groups(self.model, self.settings)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Words and targets, both (B, L)."""
        parts = self.streams.batch(step % self.steps_per_epoch)
        if self.device.type != "cuda" or self.streams.resident:
            return parts
        return tuple(part.pin_memory().to(self.device, non_blocking=True) for part in parts)

    def loss(self, *batch: Tensor) -> Tensor:
        """The mean loss of the targets."""
        words, target = batch
        loss: Tensor
        loss, self.latest = self.module(words, target, self.carried)
        return loss

    def carry(self) -> None:
        """The LSTM's state goes into the next step: in place, for a graph reads it there."""
        for carried, latest in zip(self.carried, self.latest, strict=True):
            carried.copy_(latest)

    def start_epoch(self) -> None:
        """The text begins anew."""
        for carried in self.carried:
            carried.zero_()

    def updated(self) -> dict[str, Any] | None:
        """Lets the head count the update; what it reorganised."""
        moved = self.shared_head.step() if self.shared_head else None
        return None if moved is None else asdict(moved)

    def evaluate(self) -> dict[str, float]:
        """On the development text."""
        with precise(self.device, choose_precision(self.settings.precision, self.device)):
            return evaluate(self.model, self.corpus.dev, self.corpus.counts).main_figures()

    def state(self) -> dict[str, Any]:
        """The carried state: that of this process's sequences."""
        return {"carried": list(self.carried)}

    def load_state(self, state: dict[str, Any]) -> None:
        """From `state`."""
        for carried, saved in zip(self.carried, state["carried"], strict=True):
            carried.copy_(saved)


def train(
    corpus: Corpus,
    out: Path,
    settings: Settings,
    *,
    resume: bool = False,
    force: bool = False,
    console: Console | None = None,
    world: World | None = None,
) -> Progress:
    """Trains into the folder `out`; `resume`: goes on with the run that is there, whose settings must be these."""
    world = world or World()
    device = choose_device(settings.device, world.local_rank)
    task = LanguageTask(corpus, settings, device, world)
    return start.train(
        task, data(corpus), out, settings, device,
        name=settings.head, resume=resume, force=force, console=console, world=world,
    )  # fmt: skip


def data(corpus: Corpus) -> start.Data:
    """What a run remembers of its corpus."""
    told = {
        "train_words": len(corpus.train), "dev_words": len(corpus.dev), "vocabulary": corpus.n_words,
        "digest": digest(corpus.words, corpus.counts, corpus.source),
    }  # fmt: skip
    # The counts are of this text: of pairs prepared for a summarizer, the file's are of the titles alone.
    kept = read_json(corpus.path / VOCABULARY) | {"counts": corpus.counts.tolist()}
    return start.Data(KIND, corpus.path, told, {VOCABULARY: json.dumps(kept, ensure_ascii=False)})


def stored_settings(out: Path) -> Settings:
    """The settings of a run that is there."""
    _, stored = Run.open(out, KIND)
    return Settings.from_dict(stored["settings"])
