"""Training a language model on a corpus.

Shapes: V words, B sequences, L steps.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from coterie_lab.data.corpus import Corpus, digest
from coterie_lab.data.folder import VOCABULARY
from coterie_lab.data.streams import Streams, Windows, to_device
from coterie_lab.heads import Material
from coterie_lab.models.language import LanguageModel
from coterie_lab.models.recurrent import RecurrentModel
from coterie_lab.models.transformer import Transformer
from coterie_lab.models.word_model import assemble, projection_of
from coterie_lab.tasks.language.evaluate import evaluate
from coterie_lab.tasks.language.settings import Settings
from coterie_lab.training import start
from coterie_lab.training.distributed import World
from coterie_lab.training.loop import Progress
from coterie_lab.training.optimizers import Group
from coterie_lab.training.run import read_json
from coterie_lab.training.task import Task

KIND = "language model"


def build(settings: Settings, counts: Tensor, material: Material | None = None) -> LanguageModel:
    """Builds the model on the CPU; `counts` (V,), `material`: what else its head may need."""
    options = settings.head_options
    if settings.model == "lstm":
        shape = counts.numel(), settings.embedding, settings.hidden
        recurrent = partial(RecurrentModel, *shape, layers=settings.layers, dropout=settings.dropout)
        return assemble(settings, counts, material, options, recurrent)
    transformer = partial(
        Transformer, counts.numel(), settings.hidden, layers=settings.layers, heads=settings.attention_heads,
        window=settings.length, dropout=settings.dropout, rotary=settings.positions == "rotary",
        compiled=settings.compile,
    )  # fmt: skip
    model = assemble(settings, counts, material, options, transformer)
    model.start()
    return model


def groups(model: LanguageModel, settings: Settings) -> list[Group]:
    """All parameters, in groups with the same hyperparameters."""
    projection = projection_of(model.head)
    if not isinstance(model, RecurrentModel):
        parts = ((_without(model, projection), 1.0), (projection, settings.projection_factor))
        return [
            {"params": [p for p in part if (p.ndim > 1) == decays], "factor": factor, "weight_decay": decay}
            for part, factor in parts
            for decays, decay in ((True, settings.weight_decay), (False, 0.0))  # matrices alone decay
        ]
    embedding, lstm = [model.embedding.weight], list(model.lstm.parameters())
    # A tied matrix gets gradients for all words in every batch: a single sum per row would be too coarse.
    rowwise = settings.row_accumulator and not settings.tied
    clipped = settings.clip_embedding or settings.tied
    return [
        {"params": embedding, "rowwise": rowwise, "clipped": clipped, "weight_decay": 0.0},
        {"params": lstm},
        {"params": projection, "factor": settings.projection_factor, "weight_decay": 0.0},
        {"params": _without(model, [*embedding, *lstm, *projection]), "weight_decay": 0.0},
    ]


def _without(model: LanguageModel, apart: Sequence[Tensor]) -> list[nn.Parameter]:
    """The other parameters."""
    others = {*apart}
    return [parameter for parameter in model.parameters() if parameter not in others]


class LanguageTask(Task):
    """Training a language model on a corpus, for the trainer."""

    model: LanguageModel
    settings: Settings

    def __init__(self, corpus: Corpus, settings: Settings, device: torch.device, world: World) -> None:
        if len(corpus.dev) < 2:  # raised before any training
            raise ValueError(
                f"{corpus.path} has {len(corpus.dev)} word(s) for development, and two are the least: prepare the text "
                "with a longer development part"
            )
        self.corpus = corpus
        shape, processes = (corpus.train, settings.sequences, settings.length), (world.rank, world.size)
        self.reading = (
            Streams(*shape, *processes) if settings.model == "lstm" else Windows(*shape, settings.seed, *processes)
        )
        if device.type == "cuda":
            self.reading.move(device)
        self.words_per_step = settings.sequences * settings.length
        material = Material(vocabulary=corpus.words, text=corpus.train)
        super().__init__(lambda: build(settings, corpus.counts, material), settings, self.reading.steps, device, world)
        self.carried = self.model.carried(settings.sequences // world.size)
        self.latest = self.carried

    def groups(self) -> list[Group]:
        return groups(self.model, self.settings)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Words and targets, both (B, L)."""
        parts = self.reading.batch(step)
        return parts if self.reading.resident is not None else to_device(parts, self.device)

    def loss(self, *batch: Tensor) -> Tensor:
        words, target = batch
        loss: Tensor
        loss, self.latest = self.module(words, target, self.carried)
        return loss

    def evaluate(self) -> dict[str, float]:
        found = vars(evaluate(self.model, self.corpus.dev, self.corpus.counts))
        # Without the number of words, the bands of frequency, and what a head without clusters lacks.
        return {name: value for name, value in found.items() if isinstance(value, float)}

    def start_epoch(self) -> None:
        """Resets what an LSTM carries, as the text begins anew."""
        for carried in self.carried:
            carried.zero_()

    def carry(self) -> None:
        """Carries an LSTM's state into the next step."""
        for carried, latest in zip(self.carried, self.latest, strict=True):
            carried.copy_(latest)

    def state(self) -> dict[str, Any]:
        """The state of this process's sequences."""
        return {**super().state(), "carried": list(self.carried)}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        for carried, saved in zip(self.carried, state["carried"], strict=True):
            carried.copy_(saved)


def train(corpus: Corpus, out: Path, settings: Settings, **how: Unpack[start.How]) -> Progress:
    """Trains a language model into the folder `out`."""
    return start.train(partial(LanguageTask, corpus), data(corpus), out, settings, **how)


def data(corpus: Corpus) -> start.Data:
    """What a run records of its corpus."""
    told = {
        "train_words": len(corpus.train), "dev_words": len(corpus.dev), "vocabulary": corpus.n_words,
        "digest": digest(corpus.words, corpus.counts, corpus.source),
    }  # fmt: skip
    # Count this text: the counts stored with pairs for a summarizer are those of the titles alone.
    kept = read_json(corpus.path / VOCABULARY) | {"counts": corpus.counts.tolist()}
    return start.Data(KIND, corpus.path, told, {VOCABULARY: json.dumps(kept, ensure_ascii=False)})
