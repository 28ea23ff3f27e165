"""Sorts a batch's tokens by target: cluster by cluster, and word by word inside a cluster.

One sort per batch serves both the in-cluster loss, which needs the tokens of a cluster together, and the statistic,
which needs those of a word. Shapes are static and nothing synchronises.

Shapes: T tokens, V words, C clusters.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clustering.partition import Partition


class Grouping(NamedTuple):
    """The sorted order of a batch's tokens, in a single tensor so that kernels take one argument."""

    table: Tensor  # (3 T + C + 2,) order, place, starts and word, concatenated
    n_tokens: int

    @property
    def order(self) -> Tensor:
        """The tokens, sorted, (T,); ignored ones come last."""
        return self.table[: self.n_tokens]

    @property
    def place(self) -> Tensor:
        """The index of each target in `partition.words`, sorted, (T,); V for an ignored token."""
        return self.table[self.n_tokens : 2 * self.n_tokens]

    @property
    def starts(self) -> Tensor:
        """Where each cluster's tokens begin, (C + 2,): cluster c has the tokens order[starts[c]:starts[c + 1]].

        Those of words that stand alone begin at starts[C], ignored ones at starts[C + 1].
        """
        return self.table[2 * self.n_tokens : self.table.shape[0] - self.n_tokens]

    @property
    def word(self) -> Tensor:
        """The targets, (T,); -1 for an ignored token."""
        return self.table[self.table.shape[0] - self.n_tokens :]


def prepare(target: Tensor, partition: Partition, ignore_index: int, tally: Tensor) -> Grouping:
    """The grouping of targets (T,). Ignores those out of range, too, and counts them (see `Tally`)."""
    return group(usable(target, partition.n_words, ignore_index, tally), partition)


@torch.no_grad()
def usable(target: Tensor, n_classes: int, ignore_index: int, tally: Tensor) -> Tensor:
    """The targets (T,), with -1 in place of those to ignore."""
    ignored = target == ignore_index
    bad = ((target < 0) | (target >= n_classes)) & ~ignored
    if target.numel():
        tally[0] += bad.sum()
        example = torch.where(bad, target, torch.iinfo(torch.int64).min).amax()
        tally[1] = torch.where(bad.any(), example, tally[1])
    return torch.where(bad | ignored, -1, target)


@torch.no_grad()
def group(word: Tensor, partition: Partition) -> Grouping:
    """The grouping of targets (T,), of which -1 are ignored."""
    place = torch.where(word >= 0, partition.position[word.clamp(min=0)], partition.n_words)
    place, order = place.sort(stable=True)
    return Grouping(torch.cat((order, place, torch.searchsorted(place, partition.offsets), word)), word.shape[0])
