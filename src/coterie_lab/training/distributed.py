"""Training in several processes: ranks, communication, and a head that stays the same in all of them.

Started by `torchrun`, every process trains on its own share of each batch; PyTorch's DistributedDataParallel averages
the gradients.

Shapes: T tokens of one process, D width, V words.
"""

import gc
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coterie.loss.grouping import Grouping, group
from coterie.metrics import Reorganization
from coterie.softmax import SelfOrganizedSoftmax


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


class SharedHead:
    """A self-organized head in one of several processes: each adds the tokens of all to its statistic.

    A running mean depends on the order of its samples, so merging separate means later would give other results than
    one process. The hidden vectors of a step, T × D, are small next to the gradients, which are exchanged anyway. With
    all of them in the same order, every process computes the same statistic, counts and clusters. The number of
    targets, by which the head decides when to reorganise, is that of all, too.
    """

    def __init__(self, head: SelfOrganizedSoftmax, world: World) -> None:
        self.head, self.world = head, world
        if world.size > 1:
            self.remember_own = head.remember
            head.remember = self._remember  # type: ignore[method-assign]

    def step(self) -> Reorganization | None:
        """`head.step()`; after a reorganization the processes compare their clusters."""
        moved = self.head.step()
        if moved is not None and self.world.size > 1:
            check_same(self.head.partition.cluster_of, self.world)
        return moved

    def _remember(self, seen: Tensor, grouping: Grouping, loss: Tensor) -> None:
        """Replaces the head's `remember`: `seen` (T, D), `loss` (); T is the same in all processes."""
        everyones = _gathered(seen, self.world)
        words = _gathered(grouping.word, self.world)
        total = loss.clone()  # not finite if any process's is not
        dist.all_reduce(total)
        self.remember_own(everyones, group(words, self.head.partition), total)
        # The head has counted the targets of this process; to reorganise at the same update, all must count all.
        self.head.tally.add_targets(_n_used(words, total) - _n_used(grouping.word, loss))


def _n_used(words: Tensor, loss: Tensor) -> Tensor:
    """How many targets (T,) the head uses, (): none if the batch's `loss` () is not finite."""
    return torch.where(loss.isfinite(), (words >= 0).sum(), 0)


def _gathered(part: Tensor, world: World) -> Tensor:
    """The rows of all processes, in order of rank: (T, ...) → (size · T, ...)."""
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(world.size)]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts)


def check_same(cluster_of: Tensor, world: World) -> None:
    """Raises if the processes do not hold the same partition, (V,)."""
    hashes = world.everyone(hashlib.sha256(cluster_of.cpu().numpy().tobytes()).hexdigest()[:16])
    if len(set(hashes)) > 1:
        listed = ", ".join(f"process {rank}: {value}" for rank, value in enumerate(hashes))
        raise ValueError(
            f"the processes disagree on the clusters ({listed}) and stop: were they started with different "
            "data, settings or versions? The last checkpoint is unharmed"
        )
