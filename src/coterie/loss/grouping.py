"""Tokens put in the order of their targets: cluster by cluster, and word by word inside a cluster.

One sort a batch serves the in-cluster loss (tokens of one cluster are together) and the statistic (so are those of one
word). Shapes are static and nothing waits for the device.

Shapes: T tokens, V words, C clusters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.faults import Faults


class Grouping(NamedTuple):
    """The order of a batch's tokens."""

    order: Tensor  # (T,) the tokens, in order; those left out come last
    place: Tensor  # (T,) where each token's target stands in `partition.words`, ascending; V: left out
    starts: Tensor  # (C + 1,) cluster c has the tokens order[starts[c]:starts[c + 1]]


@torch.no_grad()
def group(target: Tensor, partition: Partition) -> Grouping:
    """Groups the targets (T,); -1 leaves a token out."""
    place = torch.where(target >= 0, partition.position[target.clamp(min=0)], partition.n_words)
    return by_place(place, partition)


def by_place(place: Tensor, partition: Partition) -> Grouping:
    """Groups tokens by where their targets stand in the partition (T,), V for those left out."""
    place, order = place.sort(stable=True)
    return Grouping(order, place, torch.searchsorted(place, partition.offsets))


def prepare(faults: Faults, target: Tensor, partition: Partition) -> tuple[Tensor, Grouping]:
    """The targets (T,) with -1 for those to leave out, the bad ones tallied, and the tokens' grouping."""
    word = faults.usable(target)
    return word, group(word, partition)
