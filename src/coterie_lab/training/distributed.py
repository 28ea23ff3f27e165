"""Training in several processes: ranks and communication.

Started by `torchrun`, every process trains on its own share of each batch; PyTorch's DistributedDataParallel averages
the gradients.

Shapes: T tokens of one process, D width, V words.
"""

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class World:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine: the number of its GPU

    @property
    def main(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def everyone(self, value: Any) -> list[Any]:
        """The value of every process, by rank; all get the same list."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def by_main(self, work: Callable[[], None]) -> None:
        """Runs it in the main process; all processes raise its error, or the others would wait forever."""
        wrong: str | None = None
        error: Exception | None = None
        if self.main:
            try:
                work()
            except Exception as caught:
                wrong, error = str(caught) or type(caught).__name__, caught
        wrong = self.everyone(wrong)[0]
        if error is not None:
            raise error
        if wrong is not None:
            raise ValueError(wrong)


def join() -> World:
    """Joins the processes that `torchrun` started; alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return World(rank, size, local)


def leave(world: World) -> None:
    """Leaves the process group."""
    if world.size > 1 and dist.is_initialized():
        # Collect reference cycles that still hold the group. If it were destroyed only as Python exits, when its
        # threads can no longer be joined, the process would sometimes end with an error.
        gc.collect()
        dist.destroy_process_group()


def shared(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """The model with its gradients averaged over all processes."""
    if world.size == 1:
        return model
    module = nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    # Buffers are the head's statistic and clusters, the same in all processes: no need to broadcast them. Set as an
    # attribute, because the argument's name differs between versions of torch.
    module.broadcast_buffers = False
    return module
