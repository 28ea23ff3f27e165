"""What the trainer trains: a model whose head predicts words, and the batches it learns from."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.models.word_model import WordModel
from coterie_lab.training import distributed
from coterie_lab.training.distributed import SharedHead, World
from coterie_lab.training.optimizers import Group
from coterie_lab.training.settings import ModelSettings


class Task:
    """A model on its data; a subclass says how its batches and its loss are made."""

    words_per_step: int  # in all processes together

    def __init__(
        self,
        build: Callable[[], WordModel],
        settings: ModelSettings,
        steps_per_epoch: int,
        device: torch.device,
        world: World,
    ) -> None:
        """`build`: makes the model, on the CPU."""
        self.settings, self.steps_per_epoch, self.device = settings, steps_per_epoch, device
        begun = time.perf_counter()
        self.model = build().to(device)
        self.building = time.perf_counter() - begun  # seconds, including clusters that a head makes beforehand
        head = self.model.head
        self.shared_head = SharedHead(head, world) if isinstance(head, SelfOrganizedSoftmax) else None
        if isinstance(head, SelfOrganizedSoftmax) and settings.settle < 1:
            head.reorganize_until = round(settings.settle * settings.epochs * steps_per_epoch)
        # Whether an update waits for nothing, and batches have few shapes.
        self.graphable = bool(head.graphable)
        self.module = distributed.shared(self.model, world, device)
        if world.rank:
            torch.manual_seed(settings.seed + world.rank)  # each process drops out other units

    def groups(self) -> list[Group]:
        """All parameters, in groups that are trained alike."""
        return [{"params": list(self.model.parameters())}]

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The batch of an update, counted from 0 over the whole run, on the device."""
        raise NotImplementedError

    def loss(self, *batch: Tensor) -> Tensor:
        """The loss of a batch, a scalar; of several processes, each one's own."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """What the model is worth now, on the development data; a smaller "loss" is better."""
        raise NotImplementedError

    def start_epoch(self) -> None:
        """Called before an epoch's first batch."""

    def carry(self) -> None:
        """Updates, in place, what the next batch starts from; called after the backward pass."""

    def updated(self) -> dict[str, Any] | None:
        """Lets the head count an update; what it reorganized, if it did."""
        moved = self.shared_head.step() if self.shared_head else None
        return None if moved is None else asdict(moved)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold of this process besides the model and the optimizer."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` returned."""
