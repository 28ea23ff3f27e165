"""Parameters that `fully_shard` has spread over processes: put together for a question, and written back.

In a forward FSDP has put them together already. Any other method of the layer meets them as DTensors.
"""

from typing import Any

import torch
from torch import Tensor


def whole(parameter: Tensor | None) -> Any:
    """A parameter as an ordinary tensor; one that is sharded is gathered, so all processes must ask alike.

    Its gradient is averaged over the processes, as FSDP averages those of a forward.
    """
    # Ordinary tensors have no such method. Looking for it costs less than importing DTensor.
    gather = getattr(parameter, "full_tensor", None)
    if parameter is None or gather is None:
        return parameter
    from torch.distributed.tensor import Partial

    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
    gathered: Tensor = gather(grad_placements=[Partial() for _ in range(mesh.ndim)])
    return _Averaged.apply(gathered, mesh.size()) if gathered.requires_grad else gathered  # type: ignore[no-untyped-call]


@torch.no_grad()
def write(parameter: Tensor, values: Tensor) -> None:
    """Writes all values of a parameter in place; of a sharded one, each process writes its own part."""
    if not hasattr(parameter, "full_tensor"):
        parameter.copy_(values)
        return
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    parameter.copy_(distribute_tensor(values.to(parameter.dtype), mesh, placements, src_data_rank=None))


class _Averaged(torch.autograd.Function):
    """The identity, with its gradient divided by the number of processes that add theirs up."""

    @staticmethod
    def forward(ctx: Any, gathered: Tensor, n: int) -> Tensor:
        ctx.n = n
        return gathered.view_as(gathered)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.n, None
