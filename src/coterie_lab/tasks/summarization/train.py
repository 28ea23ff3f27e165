"""Trains a summarizer: the pairs, the model and the head put into the trainer's hands.

Shapes: B pairs, S words of a sentence, L words of a title.
"""

import hashlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from coterie.clustering.partition import Partition
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.data.batches import Batches
from coterie_lab.data.corpus import VOCABULARY, digest
from coterie_lab.data.pairs import Pairs
from coterie_lab.heads import Material
from coterie_lab.tasks.summarization.build import build
from coterie_lab.tasks.summarization.evaluate import evaluate
from coterie_lab.tasks.summarization.settings import Settings
from coterie_lab.training import distributed, start
from coterie_lab.training.device import choose_device, choose_precision
from coterie_lab.training.distributed import SharedHead, World
from coterie_lab.training.loop import Progress
from coterie_lab.training.optimizers import Group
from coterie_lab.training.run import Run
from coterie_lab.training.update import precise

KIND = "summarizer"
PARTITION = "partition.json"  # in the run's folder: the clusters it was given


class SummaryTask:
    """A summarizer on pairs, as the trainer sees it."""

    def __init__(
        self, pairs: Pairs, settings: Settings, device: torch.device, world: World, partition: Partition | None = None
    ) -> None:
        self.settings, self.device = settings, device
        longest = pairs.source["settings"]["longest_article"]
        self.train = Batches(pairs.part("train"), settings.batch, settings.seed, world.rank, world.size, longest)
        self.valid = Batches(pairs.part("valid"), settings.batch, 0, longest=longest)
        self.steps_per_epoch = self.train.steps
        self.words_per_step = len(pairs.part("train").title.ids) // self.train.steps  # about
        material = Material(vocabulary=pairs.words, text=pairs.part("train").title.ids)
        begun = time.perf_counter()
        self.model = build(settings, pairs.counts, pairs.eos, partition, material).to(device)
        self.building = time.perf_counter() - begun
        head = self.model.head
        self.shared_head = SharedHead(head, world) if isinstance(head, SelfOrganizedSoftmax) else None
        if isinstance(head, SelfOrganizedSoftmax) and settings.settle < 1:
            head.reorganize_until = round(settings.settle * settings.epochs * self.steps_per_epoch)
        self.graphable = bool(head.graphable)
        self.module: nn.Module = distributed.shared(self.model, world, device)
        if world.rank:
            torch.manual_seed(settings.seed + world.rank)  # each process drops out other units

    def groups(self) -> list[Group]:
        """All parameters, trained alike."""
        return [{"params": list(self.model.parameters())}]

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Sentences (B, S), their lengths (B,), titles (B, L)."""
        return self.train.batch(step).to(self.device).parts()

    def loss(self, *batch: Tensor) -> Tensor:
        """The mean loss of the titles' words; of several processes, each one's own."""
        loss: Tensor = self.module(*batch)
        return loss

    def carry(self) -> None:
        """Nothing: pairs do not follow one another."""

    def start_epoch(self) -> None:
        """Nothing: the batches know their epoch."""

    def updated(self) -> dict[str, Any] | None:
        """Lets the head count the update; what it reorganised."""
        moved = self.shared_head.step() if self.shared_head else None
        return None if moved is None else asdict(moved)

    def evaluate(self) -> dict[str, float]:
        """On the pairs for validation."""
        with precise(self.device, choose_precision(self.settings.precision, self.device)):
            return evaluate(self.model, self.valid)

    def state(self) -> dict[str, Any]:
        """Nothing beside the model and the optimizer."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """From `state`."""


def train(
    pairs: Pairs,
    out: Path,
    settings: Settings,
    partition: Partition | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    console: Console | None = None,
    world: World | None = None,
) -> Progress:
    """Trains into the folder `out`; `resume`: goes on with the run that is there, whose settings must be these.

    `partition`: the clusters the head starts from, which stay as they are unless it is told to reorganise them.
    """
    world = world or World()
    device = choose_device(settings.device, world.local_rank)
    task = SummaryTask(pairs, settings, device, world, partition)
    return start.train(
        task, data(pairs, partition), out, settings, device,
        name=settings.head, resume=resume, force=force, console=console, world=world,
    )  # fmt: skip


def data(pairs: Pairs, partition: Partition | None) -> start.Data:
    """What a run remembers of its pairs and its clusters."""
    files = {VOCABULARY: (pairs.path / VOCABULARY).read_text(encoding="utf-8")}
    fingerprint: dict[str, Any] = {f"{name}_pairs": len(part) for name, part in pairs.parts.items()}
    fingerprint |= {"vocabulary": pairs.n_words, "clusters": None}
    fingerprint |= {"digest": digest(pairs.words, pairs.counts, pairs.source)}
    if partition is not None:
        files[PARTITION] = partition.to_text()
        fingerprint["clusters"] = hashlib.sha256(files[PARTITION].encode()).hexdigest()[:16]
    return start.Data(KIND, pairs.path, fingerprint, files)


def stored_settings(out: Path) -> Settings:
    """The settings of a run that is there."""
    _, stored = Run.open(out, KIND)
    return Settings.from_dict(stored["settings"])
