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
    """The order of a batch's tokens."""

    order: Tensor  # (T,) the tokens, in order; those left out come last
    place: Tensor  # (T,) where each token's target stands in `partition.words`, ascending; V: left out
    starts: Tensor  # (C + 1,) cluster c has the tokens order[starts[c]:starts[c + 1]]


@torch.no_grad()
def usable(target: Tensor, n_classes: int, ignore_index: int, tally: Tensor) -> Tensor:
    """The targets (T,), -1 in place of ignored ones and of those out of range, which are tallied (see `Tally`)."""
    ignored = target == ignore_index
    bad = ((target < 0) | (target >= n_classes)) & ~ignored
    if target.numel():
        tally[0] += bad.sum()
        example = torch.where(bad, target, torch.iinfo(torch.int64).min).amax()
        tally[1] = torch.where(bad.any(), example, tally[1])
    return torch.where(bad | ignored, -1, target)


@torch.no_grad()
def prepare(target: Tensor, partition: Partition, ignore_index: int, tally: Tensor) -> tuple[Tensor, Grouping]:
    """The targets to use, (T,) with -1 for those to leave out, and their grouping."""
    word = usable(target, partition.n_words, ignore_index, tally)
    return word, group(word, partition)


@torch.no_grad()
def group(target: Tensor, partition: Partition) -> Grouping:
    """Groups the targets (T,); -1 leaves a token out."""
    place = torch.where(target >= 0, partition.position[target.clamp(min=0)], partition.n_words)
    place, order = place.sort(stable=True)
    return Grouping(order, place, torch.searchsorted(place, partition.offsets))
