"""The device to compute on, and the precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import torch

from coterie_lab.training.settings import Device, Precision


def choose_device(asked: Device, index: int = 0) -> torch.device:
    """The device of this name; auto: a GPU if there is one."""
    if asked not in get_args(Device):
        raise ValueError(f"device must be one of {', '.join(get_args(Device))}; got {asked!r}")
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("a GPU was asked for (device cuda) and PyTorch sees none: use --device cpu or auto")
    if asked == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", index)


def choose_precision(asked: Precision, device: torch.device) -> torch.dtype | None:
    """The dtype for autocast, or None for float32; parameters and sums stay in float32."""
    if asked == "float32" or (asked == "auto" and device.type == "cpu"):
        return None
    return torch.bfloat16


@contextmanager
def precise(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast to `dtype`; None: no autocast."""
    with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        yield
