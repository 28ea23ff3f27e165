"""One in-cluster loss, several ways; all compute the same function."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from coterie.loss import grouped, reference
from coterie.partition import Partition

Backend = Literal["auto", "reference", "torch"]
InCluster = Callable[[Tensor, Tensor, Tensor | None, Tensor, Partition], tuple[Tensor, Tensor]]

BACKENDS: dict[str, InCluster] = {"reference": reference.in_cluster, "torch": grouped.in_cluster}


def choose(backend: Backend, device: torch.device) -> InCluster:
    """The in-cluster loss to use on a device."""
    return BACKENDS["torch" if backend == "auto" else backend]
