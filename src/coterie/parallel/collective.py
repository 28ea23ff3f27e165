"""The E-step of several processes that train one model: they merge what they remember, and assign alike.

Each process remembers the targets of its own batches. Once per reorganisation all add up what they remember and what
they have counted; then every process computes the same assignment, and compares it with the others'.
"""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Of a layer, in this order; what `compare` names where processes differ.
SAME = ("classes", "clusters", "places for words of their own", "columns of the statistic", "updates", "partition")


def group_of(given: "ProcessGroup | None") -> "ProcessGroup | None":
    """The processes that train together: those given, or all there are; None in a process that is alone."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    group = dist.group.WORLD if given is None else given
    return group if group is not None and n_processes(group) > 1 else None


def n_processes(group: "ProcessGroup") -> int:
    """How many processes there are."""
    return dist.get_world_size(group)


def add_up(tensor: Tensor, group: "ProcessGroup") -> Tensor:
    """Adds the tensors of all processes, in place."""
    dist.all_reduce(tensor, group=group)
    return tensor


def compare(numbers: Tensor, group: "ProcessGroup", names: tuple[str, ...] = SAME) -> None:
    """Raises in every process unless `numbers` (one for each name) are the same in all."""
    everyones = [torch.empty_like(numbers) for _ in range(n_processes(group))]
    dist.all_gather(everyones, numbers, group=group)
    table = torch.stack(everyones).tolist()
    for column, name in enumerate(names):
        values = [row[column] for row in table]
        if len(set(values)) > 1:
            listed = ", ".join(f"process {rank}: {value}" for rank, value in enumerate(values))
            raise RuntimeError(
                f"the processes that train this layer differ in their {name} ({listed}) and stop: were they built with "
                "different data, seeds or versions, or does one not call step()? Start all of them from one checkpoint"
            )
