"""Buffers that follow a module to its device but not to its dtype."""

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class ExactBuffers(nn.Module):
    """A module without parameters whose buffers keep their precision under `.half()`, `.to(torch.bfloat16)`, …

    Running means and sums would stall in half precision: a step of 1/f is rounded away.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, buffer in self._buffers.items():
            assert buffer is not None
            moved = fn(buffer)
            self._buffers[name] = moved if moved.dtype == buffer.dtype else buffer.to(moved.device)
        return self
