"""How a training step is computed: the same four things, three ways.

`reference` is obvious and slow, `torch` uses ordinary PyTorch operations, `triton` fused kernels on a GPU.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.clustering.statistics import Statistic
from coterie.faults import Faults
from coterie.loss import cpu as grouped
from coterie.loss import reference
from coterie.loss.grouping import Grouping, prepare
from coterie.loss.levels import LogProbs
from coterie.metrics import summarize

Backend = Literal["auto", "reference", "torch", "triton"]
BACKENDS = ("auto", "reference", "torch", "triton")
HAS_TRITON = importlib.util.find_spec("triton") is not None
# Kernels then run on a CPU, slowly.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes")


class Ways(NamedTuple):
    """What a step consists of, beside the projection."""

    prepare: Callable[[Faults, Tensor, Partition], tuple[Tensor, Grouping]]
    two_level: Callable[..., LogProbs]
    summarize: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    remember: Callable[[Statistic, Tensor, Tensor, Grouping, Tensor, Tensor], None]
    recordable: bool = False  # whether a step is launches alone, and can be a CUDA graph


def choose(backend: Backend, hidden: Tensor) -> Ways:
    """The ways to use for hidden vectors on this device and in this dtype."""
    if backend == "auto":
        # Kernels compute in float32 at most.
        backend = "triton" if HAS_TRITON and hidden.is_cuda and hidden.dtype != torch.float64 else "torch"
    if backend == "triton":
        if not (hidden.is_cuda or INTERPRETED):
            raise ValueError(f'backend="triton" computes on a GPU; hidden is on {hidden.device}: use backend="auto"')
        # Imported when it is first used: a layer on a CPU does without triton.
        from coterie.kernels import grouping, statistic, summary
        from coterie.loss import triton as fused

        return Ways(grouping.prepare, fused.two_level, summary.summarize, statistic.update, recordable=True)
    return Ways(prepare, (reference if backend == "reference" else grouped).two_level, summarize, Statistic.update)


def in_backward() -> bool:
    """Whether what is computed now is part of a backward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
