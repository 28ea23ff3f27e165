"""Chooses the implementation of a training step; all three compute the same function.

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
# Triton's interpreter runs the kernels on a CPU, slowly, for tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes")


class Books(NamedTuple):
    """The running sums and counts that a batch is added to."""

    sums: Tensor  # (3,) as in `Meter`
    tally: Tensor  # (5,) as in `Tally`
    ignore_index: int
    look: Callable[[], None] | None = None  # raises if the tally counts bad targets


class Batch(NamedTuple):
    """The results of a batch."""

    output: Tensor  # (T,) log P(target); 0 for an ignored token
    even: Tensor  # (T,) the mean of log P(c|h) over filled clusters plus that of log P(w|c, h) over the cluster's words
    loss: Tensor  # () the mean of -output over the tokens that are not ignored
    grouping: Grouping
    cluster_hidden: Tensor  # (T, D) h_c, or h if the projection is linear


class Ways(NamedTuple):
    """One implementation of a step: `compute` hidden (T, D) and targets (T,) to a `Batch`, then `remember` it."""

    compute: Callable[[Tensor, Vectors, Tensor, Partition, Books], Batch]
    remember: Callable[[Statistic, Tensor, Grouping, Tensor, Tensor], None]


_kernels: Ways | None = None


def choose(backend: Backend, hidden: Tensor) -> Ways:
    """The implementation to use for hidden vectors of this device and dtype."""
    if backend == "auto":
        # The kernels have no float64.
        backend = "triton" if HAS_TRITON and hidden.is_cuda and hidden.dtype != torch.float64 else "torch"
    if backend == "triton":
        if not (hidden.is_cuda or INTERPRETED):
            raise ValueError(f'backend="triton" computes on a GPU; hidden is on {hidden.device}: use backend="auto"')
        return by_triton()
    return Ways(by_reference if backend == "reference" else by_torch, Statistic.update)


def by_triton() -> Ways:
    """The kernels, imported at their first use: a layer on a CPU has no need of triton."""
    global _kernels
    compiling = torch.compiler.is_compiling()  # the compiler would guard on the cache, and compile again once it is set
    if not compiling and _kernels is not None:
        return _kernels
    from coterie.kernels import statistic
    from coterie.loss import triton

    ways = Ways(triton.compute, statistic.update)
    if not compiling:
        _kernels = ways  # even a repeated import costs host time in every step
    return ways


def by_reference(hidden: Tensor, vectors: Vectors, target: Tensor, partition: Partition, books: Books) -> Batch:
    """A batch by the reference, O(T · V)."""
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
    """Whether the current code runs inside a backward, as with activation checkpointing."""
    # There is no public function for this; torch.utils.checkpoint itself calls this one.
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
