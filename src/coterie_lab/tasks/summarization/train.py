"""Training a summarizer on pairs.

Shapes: B pairs, S words of a sentence, L words of a title.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie_lab.data.batches import Batches
from coterie_lab.data.corpus import digest
from coterie_lab.data.folder import VOCABULARY
from coterie_lab.data.pairs import Pairs
from coterie_lab.heads import Material
from coterie_lab.models.summarizer import Summarizer
from coterie_lab.tasks.summarization.build import build
from coterie_lab.tasks.summarization.evaluate import evaluate
from coterie_lab.tasks.summarization.settings import Settings
from coterie_lab.training import start
from coterie_lab.training.distributed import World
from coterie_lab.training.loop import Progress
from coterie_lab.training.run import Run
from coterie_lab.training.task import Task

KIND = "summarizer"
PARTITION = "partition.json"  # in the run's folder: the clusters it was given


class SummaryTask(Task):
    """A summarizer on pairs, as the trainer sees it."""

    model: Summarizer

    def __init__(
        self, pairs: Pairs, settings: Settings, device: torch.device, world: World, partition: Partition | None = None
    ) -> None:
        longest, part = pairs.source["settings"]["longest_article"], pairs.part("train")
        self.train = Batches(part, settings.batch, settings.seed, world.rank, world.size, longest)
        self.valid = Batches(pairs.part("valid"), settings.batch, 0, longest=longest)
        self.words_per_step = len(part.title.ids) // self.train.steps  # about
        material = Material(vocabulary=pairs.words, text=part.title.ids)
        super().__init__(
            lambda: build(settings, pairs.counts, pairs.eos, partition, material),
            settings, self.train.steps, device, world,
        )  # fmt: skip

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Sentences (B, S), their lengths (B,), titles (B, L)."""
        return self.train.batch(step).to(self.device).parts()

    def loss(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.module(*batch)
        return loss

    def evaluate(self) -> dict[str, float]:
        return evaluate(self.model, self.valid)


def train(
    pairs: Pairs, out: Path, settings: Settings, partition: Partition | None = None, **how: Unpack[start.How]
) -> Progress:
    """Trains a summarizer into the folder `out`.

    `partition`: the clusters the head starts from, which stay fixed unless it is told to reorganize them.
    """
    task = partial(SummaryTask, pairs, partition=partition)
    return start.train(task, data(pairs, partition), out, settings, **how)


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
    return Settings.from_dict(Run.open(out, KIND)[1]["settings"])
