"""How a training step is computed: the same three things, three ways.

`reference` is obvious and slow, `torch` uses ordinary PyTorch operations, `triton` fused kernels on a GPU.
"""

import importlib.util
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.grouping import Grouping, group
from coterie.loss import grouped, reference
from coterie.loss.levels import LogProbs
from coterie.partition import Partition
from coterie.statistics import Statistic

Backend = Literal["auto", "reference", "torch", "triton"]
BACKENDS = ("auto", "reference", "torch", "triton")
HAS_TRITON = importlib.util.find_spec("triton") is not None


class Ways(NamedTuple):
    """What a step consists of, beside its two products with the projections."""

    group: Callable[[Tensor, Partition], Grouping]
    two_level: Callable[..., LogProbs]
    remember: Callable[[Statistic, Tensor, Tensor, Grouping, Tensor], Tensor]


def choose(backend: Backend, hidden: Tensor) -> Ways:
    """The ways to use for hidden vectors on this device and in this dtype."""
    if backend == "auto":
        # Kernels compute in float32 at most.
        backend = "triton" if HAS_TRITON and hidden.is_cuda and hidden.dtype != torch.float64 else "torch"
    if backend == "triton":
        # Imported when it is first used: a layer on a CPU does without triton.
        from coterie.kernels import grouping as grouping_kernel
        from coterie.kernels import statistic as statistic_kernel
        from coterie.loss import fused

        return Ways(grouping_kernel.group, fused.two_level, statistic_kernel.update)
    return Ways(group, (reference if backend == "reference" else grouped).two_level, Statistic.update)
