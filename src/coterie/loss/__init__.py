"""One two-level loss, several ways; all compute the same function."""

from collections.abc import Callable
from typing import Literal

import torch

from coterie.loss import grouped, reference
from coterie.loss.levels import LogProbs

Backend = Literal["auto", "reference", "torch"]
TwoLevel = Callable[..., LogProbs]

BACKENDS: dict[str, TwoLevel] = {"reference": reference.two_level, "torch": grouped.two_level}


def choose(backend: Backend, device: torch.device) -> TwoLevel:
    """The two-level loss to use on a device."""
    return BACKENDS["torch" if backend == "auto" else backend]
