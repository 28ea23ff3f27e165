"""How a training step is computed: the same function, three ways.

`reference` is obvious and slow, `torch` uses ordinary PyTorch operations, `triton` fused kernels on a GPU.

Shapes: T tokens, D width, V words, C clusters.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.clustering.statistics import Statistic
from coterie.loss import cpu, reference
from coterie.loss.grouping import Grouping, prepare
from coterie.loss.levels import LogProbs, Vectors
from coterie.metrics import summarize

Backend = Literal["auto", "reference", "torch", "triton"]
BACKENDS = ("auto", "reference", "torch", "triton")
HAS_TRITON = importlib.util.find_spec("triton") is not None
# Kernels then run on a CPU, slowly.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes")


class Books(NamedTuple):
    """Where a batch is entered."""

    sums: Tensor  # (3,) as in `Meter`
    tally: Tensor  # (4,) as in `Tally`
    ignore_index: int
    look: Callable[[], None] | None = None  # raises if the tally says that targets were bad


class Batch(NamedTuple):
    """What comes of a batch."""

    output: Tensor  # (T,) log P(target); 0 for a token left out
    even: Tensor  # (T,) the mean of log P(c|h) over filled clusters and that of log P(w|c, h) over the cluster's words
    loss: Tensor  # () the mean of -output over the tokens that are used
    grouping: Grouping
    cluster_hidden: Tensor  # (T, D) what the cluster level sees


class Ways(NamedTuple):
    """What a step consists of. `compute`: hidden (T, D), targets (T,) → its batch, entered in the books."""

    compute: Callable[[Tensor, Vectors, Tensor, Partition, Books], Batch]
    remember: Callable[[Statistic, Tensor, Grouping, Tensor, Tensor], None]


_kernels: Ways | None = None


def choose(backend: Backend, hidden: Tensor) -> Ways:
    """The ways to use for hidden vectors on this device and in this dtype."""
    if backend == "auto":
        # Kernels compute in float32 at most.
        backend = "triton" if HAS_TRITON and hidden.is_cuda and hidden.dtype != torch.float64 else "torch"
    if backend == "triton":
        if not (hidden.is_cuda or INTERPRETED):
            raise ValueError(f'backend="triton" computes on a GPU; hidden is on {hidden.device}: use backend="auto"')
        return by_triton()
    return Ways(by_reference if backend == "reference" else by_torch, Statistic.update)


def by_triton() -> Ways:
    """The kernels; imported when they are first used, for a layer on a CPU does without triton."""
    global _kernels
    if _kernels is None:  # an import takes the host longer, each time, than it looks
        from coterie.kernels import statistic
        from coterie.loss import triton

        _kernels = Ways(triton.compute, statistic.update)
    return _kernels


def by_reference(hidden: Tensor, vectors: Vectors, target: Tensor, partition: Partition, books: Books) -> Batch:
    """A batch, written so that one look tells it is right."""
    return _compute(reference.two_level, hidden, vectors, target, partition, books)


def by_torch(hidden: Tensor, vectors: Vectors, target: Tensor, partition: Partition, books: Books) -> Batch:
    """A batch by ordinary PyTorch operations."""
    return _compute(cpu.two_level, hidden, vectors, target, partition, books)


TwoLevel = Callable[[Tensor, Vectors, Partition, Grouping], tuple[LogProbs, Tensor]]


def _compute(
    two_level: TwoLevel, hidden: Tensor, vectors: Vectors, target: Tensor, partition: Partition, books: Books
) -> Batch:
    grouping = prepare(target, partition, books.ignore_index, books.tally)
    if books.look is not None:
        books.look()
    log_p, cluster_hidden = two_level(hidden, vectors, partition, grouping)
    output, loss = summarize(log_p.cluster, log_p.word, grouping.starts[-1], books.sums, books.tally)
    return Batch(output, log_p.mean_cluster + log_p.mean_word, loss, grouping, cluster_hidden)


def in_backward() -> bool:
    """Whether what is computed now is part of a backward, as with activation checkpointing."""
    # PyTorch has no public way to ask; torch.utils.checkpoint itself asks this one.
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
