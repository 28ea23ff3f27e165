"""Tensors of a layer that are no parameters: buffers of an exact dtype, and tensors that no one else should touch."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class ExactBuffers(nn.Module):
    """A module without parameters whose buffers keep their dtype under `.half()`, `.to(torch.bfloat16)`, …

    In half precision, running means and sums would stall: updates as small as 1/f are rounded away.
    """

    # What `.to()`, `.half()` and `.cuda()` call; there is no public method to override instead.
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, buffer in list(self.named_buffers(recurse=False)):
            setattr(self, name, _moved(buffer, fn, _empties(fn)))
        return self


class Kept(nn.Module):
    """A module without parameters that keeps tensors out of its buffers.

    They move with the module and keep their dtype, but DistributedDataParallel does not overwrite them with another
    process's, no average is taken over them, and a module built on the meta device gets them filled with zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[str] = []

    def keep(self, name: str, *shape: int, dtype: torch.dtype, device: torch.device | str | None) -> None:
        """Makes the attribute `name` a tensor of zeros."""
        self._kept.append(name)
        setattr(self, name, torch.zeros(shape, dtype=dtype, device=device))

    def follow(self, device: torch.device) -> None:
        """Moves the tensors to a device on which others have put the rest of the model."""
        for name in self._kept:
            tensor: Tensor = getattr(self, name)
            if tensor.device != device:
                with torch.inference_mode(False):  # it will be written to in training, too
                    here = torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
                setattr(self, name, here)

    def clear(self) -> None:
        """Sets all numbers to zero."""
        for name in self._kept:
            getattr(self, name).zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in self._kept:
            setattr(self, name, _moved(getattr(self, name), fn, _empties(fn)))
        return self


def _moved(tensor: Tensor, fn: Callable[[Tensor], Tensor], empties: bool) -> Tensor:
    moved = fn(tensor)
    if empties and not moved.is_meta:
        moved = torch.zeros_like(moved)
    return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)


def _empties(fn: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function gives new memory that nobody has written to, as in `to_empty`."""
    probe = torch.arange(1, 17, dtype=torch.float32, device="cpu") / 17  # random numbers would be the user's
    moved = fn(probe)
    return not moved.is_meta and not torch.equal(moved.to("cpu", probe.dtype), probe.to(moved.dtype).to(probe.dtype))
