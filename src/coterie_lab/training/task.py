"""The interface between the trainer and a task: a model whose head predicts words, and its batches."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from coterie.metrics import Reorganization
from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.models.word_model import WordModel
from coterie_lab.training import distributed
from coterie_lab.training.distributed import World
from coterie_lab.training.optimizers import Group
from coterie_lab.training.settings import ModelSettings


class Task:
    """A model with its data; a subclass defines batches and loss."""

    words_per_step: int  # of all processes together

    def __init__(
        self,
        build: Callable[[], WordModel],
        settings: ModelSettings,
        steps_per_epoch: int,
        device: torch.device,
        world: World,
    ) -> None:
        """`build`: makes the model, on the CPU."""
        self.settings, self.steps_per_epoch, self.device, self.world = settings, steps_per_epoch, device, world
        self.total = settings.updates or settings.epochs * steps_per_epoch  # updates of the run
        begun = time.perf_counter()
        self.model = build().to(device)
        self.building = time.perf_counter() - begun  # seconds, including clusters that a head makes beforehand
        head = self.model.head
        if isinstance(head, SelfOrganizedSoftmax) and settings.settle < 1:
            head.reorganize_until = round(settings.settle * self.total)
        # Whether an update can be captured: it never synchronises, and batches have few shapes.
        self.graphable = bool(head.graphable)
        self.module = distributed.shared(self.model, world, device)
        if world.rank:
            torch.manual_seed(settings.seed + world.rank)  # so that dropout differs between processes

    def groups(self) -> list[Group]:
        """All parameters, in groups with the same hyperparameters."""
        return [{"params": list(self.model.parameters())}]

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The batch of an update, counted from 0 over the whole run, on the device."""
        raise NotImplementedError

    def loss(self, *batch: Tensor) -> Tensor:
        """The loss of a batch, a scalar; of several processes, each one's own."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Evaluates the model on the development data; a smaller "loss" is better."""
        raise NotImplementedError

    def start_epoch(self) -> None:
        """Called before an epoch's first batch."""

    def carry(self) -> None:
        """Updates, in-place, the state that the next batch starts from; called after the backward pass."""

    def updated(self) -> dict[str, Any] | None:
        """Calls the head's `step()`; returns what it reorganized, or None."""
        head = self.model.head
        moved = head.step() if isinstance(head, SelfOrganizedSoftmax) else None
        return None if moved is None else asdict(moved)

    def around_reorganizations(self, look: Callable[[str], None]) -> None:
        """From now on calls look("before") and look("after") around each reorganization of the clusters."""
        head = self.model.head
        if not isinstance(head, SelfOrganizedSoftmax):
            return
        reorganize = head.reorganize

        def watched() -> Reorganization:
            look("before")
            moved = reorganize()
            look("after")
            return moved

        head.reorganize = watched  # type: ignore[method-assign]

    def clusters_are_random(self) -> bool:
        """Whether the head has clusters that could move, and none has yet."""
        head = self.model.head
        return isinstance(head, SelfOrganizedSoftmax) and head.statistic is not None and head.partition.random

    def state(self) -> dict[str, Any]:
        """The state of this process for a checkpoint, besides model and optimizer: what its head remembers."""
        head = self.model.head
        if self.world.size == 1 or not isinstance(head, SelfOrganizedSoftmax) or head.statistic is None:
            return {}
        held = {"statistic": head.statistic.get_extra_state(), "head": head.get_extra_state()}
        return held | ({"fresh": head.tally.fresh.clone()} if head.counting else {})

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        head = self.model.head
        if "statistic" in state and isinstance(head, SelfOrganizedSoftmax) and head.statistic is not None:
            head.statistic.set_extra_state(state["statistic"])
            head.set_extra_state(state["head"])
            if head.counting:
                head.tally.fresh.copy_(state["fresh"])
