"""Buffers that move with a module to its device but keep their dtype."""

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class ExactBuffers(nn.Module):
    """A module without parameters whose buffers keep their dtype under `.half()`, `.to(torch.bfloat16)`, …

    In half precision, running means and sums would stall: updates as small as 1/f are rounded away.
    """

    # What `.to()`, `.half()` and `.cuda()` call; there is no public method to override instead.
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, buffer in list(self.named_buffers(recurse=False)):
            moved = fn(buffer)
            setattr(self, name, moved if moved.dtype == buffer.dtype else buffer.to(moved.device))
        return self
