"""Tokens put in the order of their targets: cluster by cluster, and word by word inside a cluster.

One sort a batch serves the in-cluster loss (tokens of one cluster are together) and the statistic (so are those of one
word). Shapes are static and nothing waits for the device.

Shapes: T tokens, V words, C clusters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition


class Grouping(NamedTuple):
    """The order of a batch's tokens, all in one tensor: a kernel that reads it is launched with one argument."""

    table: Tensor  # (3 T + C + 1,) order, place, starts and word, one behind the other
    n_tokens: int

    @property
    def order(self) -> Tensor:
        """(T,) the tokens, in order; those left out come last."""
        return self.table[: self.n_tokens]

    @property
    def place(self) -> Tensor:
        """(T,) where each token's target stands in `partition.words`, in order, ascending; V: left out."""
        return self.table[self.n_tokens : 2 * self.n_tokens]

    @property
    def starts(self) -> Tensor:
        """(C + 1,) cluster c has the tokens order[starts[c]:starts[c + 1]]."""
        return self.table[2 * self.n_tokens : self.table.shape[0] - self.n_tokens]

    @property
    def word(self) -> Tensor:
        """(T,) the targets; -1: left out."""
        return self.table[self.table.shape[0] - self.n_tokens :]


def prepare(target: Tensor, partition: Partition, ignore_index: int, tally: Tensor) -> Grouping:
    """The grouping of targets (T,), without ignored ones and those out of range, which are tallied (see `Tally`)."""
    return group(usable(target, partition.n_words, ignore_index, tally), partition)


@torch.no_grad()
def usable(target: Tensor, n_classes: int, ignore_index: int, tally: Tensor) -> Tensor:
    """The targets (T,), -1 in place of those to leave out."""
    ignored = target == ignore_index
    bad = ((target < 0) | (target >= n_classes)) & ~ignored
    if target.numel():
        tally[0] += bad.sum()
        example = torch.where(bad, target, torch.iinfo(torch.int64).min).amax()
        tally[1] = torch.where(bad.any(), example, tally[1])
    return torch.where(bad | ignored, -1, target)


@torch.no_grad()
def group(word: Tensor, partition: Partition) -> Grouping:
    """The grouping of targets (T,); -1 leaves a token out."""
    place = torch.where(word >= 0, partition.position[word.clamp(min=0)], partition.n_words)
    place, order = place.sort(stable=True)
    return Grouping(torch.cat((order, place, torch.searchsorted(place, partition.offsets), word)), word.shape[0])
