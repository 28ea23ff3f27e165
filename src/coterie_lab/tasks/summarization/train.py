"""Training a summarizer on pairs.

Shapes: V words, B pairs, S words of a sentence, L words of a title.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.metrics import perplexity
from coterie_lab.data.batches import Batches
from coterie_lab.data.corpus import digest
from coterie_lab.data.folder import VOCABULARY
from coterie_lab.data.pairs import Pairs
from coterie_lab.heads import Material
from coterie_lab.models.summarizer import Summarizer
from coterie_lab.models.word_model import assemble
from coterie_lab.tasks.summarization.settings import Settings
from coterie_lab.training import start
from coterie_lab.training.distributed import World
from coterie_lab.training.loop import Progress
from coterie_lab.training.run import PARTITION
from coterie_lab.training.task import Task

KIND = "summarizer"
CLUSTERED = ("self-organized", "self-organized-paper")  # heads that take clusters


def build(
    settings: Settings, counts: Tensor, eos: int, partition: Partition | None = None, material: Material | None = None
) -> Summarizer:
    """The model, on the CPU; `counts` (V,).

    `partition`: the clusters of the head, which stay fixed unless its options say `reorganize_every`.
    `material`: what else the head may need.
    """
    n_words, options = counts.numel(), dict(settings.head_options)
    if partition is not None:
        _check_partition(settings, partition, n_words)
        options = {"reorganize_every": None, **options, "partition": partition}
    model = partial(
        Summarizer, n_words, eos, settings.embedding, settings.hidden, bidirectional=settings.bidirectional,
        look_at_words=settings.look_at_words, dropout=settings.dropout, input_feeding=settings.input_feeding,
    )  # fmt: skip
    return assemble(settings, counts, material, options, model)


def _check_partition(settings: Settings, partition: Partition, n_words: int) -> None:
    """Raises for clusters of another vocabulary or with words that may not stand alone, or a head that takes none."""
    head = settings.head
    if partition.n_words != n_words:
        raise ValueError(
            f"the clusters are of {partition.n_words:,} words and the pairs have {n_words:,}: learn them from these "
            "pairs (`coterie summarize cluster`)"
        )
    if head not in CLUSTERED:
        raise ValueError(
            f"the head {head!r} takes no clusters: leave out --partition, or use --head {' or '.join(CLUSTERED)}"
        )
    if partition.own.numel() and (head == "self-organized-paper" or settings.head_options.get("own_words") == 0):
        raise ValueError(
            f"with these clusters {partition.own.numel()} words stand alone, with these settings none may: learn "
            "clusters with `coterie summarize cluster --head-option own_words=0`"
        )


def evaluate(model: Summarizer, batches: Batches) -> dict[str, float]:
    """Loss and perplexity over all words and ends of the titles, and the cluster perplexities if there are any."""
    device = model.embedding.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    words = 0
    with model.evaluating() as factors:
        for batch in batches.in_order():
            words += int((batch.title >= 0).sum())  # still on the CPU
            batch = batch.to(device)
            hidden = model.hidden(*batch)
            total += model.head(hidden, batch.title).output.double().sum()  # 0 for padding
    loss = -float(total) / words
    return {"loss": loss, "perplexity": perplexity(loss), **factors}


class SummaryTask(Task):
    """Training a summarizer on pairs, for the trainer."""

    model: Summarizer

    def __init__(
        self, pairs: Pairs, settings: Settings, device: torch.device, world: World, partition: Partition | None = None
    ) -> None:
        longest, part = pairs.source["settings"]["longest_article"], pairs.part("train")
        self.batches = Batches(part, settings.batch, settings.seed, world.rank, world.size, longest)
        self.valid = Batches(pairs.part("valid"), settings.batch, 0, longest=longest)
        self.words_per_step = len(part.title.ids) // self.batches.steps  # about
        material = Material(vocabulary=pairs.words, text=part.title.ids)
        super().__init__(
            lambda: build(settings, pairs.counts, pairs.eos, partition, material),
            settings, self.batches.steps, device, world,
        )  # fmt: skip

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Sentences (B, S), their lengths (B,), titles (B, L)."""
        return self.batches.batch(step).to(self.device)

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
    """What a run records of its pairs and its clusters."""
    files = {VOCABULARY: (pairs.path / VOCABULARY).read_text(encoding="utf-8")}
    fingerprint: dict[str, Any] = {f"{name}_pairs": len(part) for name, part in pairs.parts.items()}
    fingerprint |= {"vocabulary": pairs.n_words, "clusters": None}
    fingerprint |= {"digest": digest(pairs.words, pairs.counts, pairs.source)}
    if partition is not None:
        files[PARTITION] = partition.to_text()
        fingerprint["clusters"] = hashlib.sha256(files[PARTITION].encode()).hexdigest()[:16]
    return start.Data(KIND, pairs.path, fingerprint, files)
