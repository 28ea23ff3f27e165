"""Exact search on a GPU, without a look from the host.

A launch takes the host longer than the GPU needs to read a hundred megabytes, so most searches are dense: six launches,
two more than a full softmax's. Where the word matrix is so large that reading it counts, every row first opens its few
most probable clusters; the k-th best word there is a bar that the device itself holds every other cluster against.

Shapes: T rows, D width, V words, C clusters, S most words in a cluster, k answers.
"""

from typing import Self

import torch
from torch import Tensor

from coterie.kernels import search as kernels
from coterie.partition import Partition

CHEAP = 2**29  # bytes of a word matrix that is always read whole
FEW_ROWS = 4  # more of them would read most of it all the same, each for itself
MOST_FOUND = 1 << 28  # numbers that a dense search may hold at a time: a gigabyte
FIRST = 4  # clusters opened to see where the bar is


class GpuWords:
    """The word level on a GPU: vectors, biases, and who sits with whom."""

    def __init__(self, weight: Tensor, bias: Tensor | None, partition: Partition) -> None:
        self.weight, self.bias, self.partition = weight, bias, partition

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, partition: Partition) -> Self | None:
        """None where clusters may be too large, or too many, for the kernels."""
        return cls(weight, bias, partition) if kernels.fits(partition.capacity, partition.n_clusters) else None

    def shares(self, logits: Tensor) -> Tensor:
        """log P(c|h), -inf for empty clusters, without a gradient: (T, C) → (T, C)."""
        return kernels.shares(logits, self.partition.offsets)

    def log_prob(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """log P(w|h) of every word, without a gradient: (T, D), (T, C) → (T, V)."""
        with torch.autocast(hidden.device.type, enabled=False):
            if hidden.shape[0] <= kernels.FEW_ROWS:
                logits = kernels.all_logits(hidden, self.weight)
            elif hidden.dtype == torch.float32:
                logits = hidden @ self.weight.to(hidden.dtype).T
            else:  # the sums as they are, not rounded
                logits = torch.mm(hidden, self.weight.to(hidden.dtype).T, out_dtype=torch.float32)
        place = self.partition
        return kernels.normalize(logits, log_cluster, self.bias, place.words, place.offsets, place.capacity)

    def open(self, hidden: Tensor, log_cluster: Tensor, clusters: Tensor) -> Tensor:
        """log P(w|h) of each row's clusters (T, W): (T, W, S), -inf beyond a cluster's last word."""
        place = self.partition
        return kernels.open_clusters(
            hidden, log_cluster, self.weight, self.bias, place.words, place.offsets, clusters, place.capacity
        )

    def words_at(self, clusters: Tensor, places: Tensor) -> Tensor:
        """The words at places (T, k) of what `open` gives for clusters (T, W), flattened: (T, k)."""
        capacity = self.partition.capacity
        cluster = clusters.gather(1, places // capacity)
        at = self.partition.offsets[cluster] + places % capacity
        return self.partition.words[at.clamp(max=self.partition.n_words - 1)]

    def topk(self, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable words, best first: log P(w|h) and the words, both (T, k)."""
        place, n_first = self.partition, min(FIRST, log_cluster.shape[1])
        if self.weight.nbytes <= CHEAP or hidden.shape[0] > FEW_ROWS or k > n_first * place.capacity:
            rows = max(1, MOST_FOUND // place.n_words)
            parts = zip(hidden.split(rows), log_cluster.split(rows), strict=True)
            found = [self.log_prob(few, shares).topk(k, 1) for few, shares in parts]
            if len(found) == 1:
                return found[0].values, found[0].indices
            return torch.cat([part.values for part in found]), torch.cat([part.indices for part in found])
        first = log_cluster.topk(n_first, 1).indices
        # Where these clusters have fewer than k words, it is -inf: no cluster is below it.
        bar = self.open(hidden, log_cluster, first).flatten(1).topk(k, 1).values[:, -1]
        log_p = kernels.open_above(
            hidden, log_cluster, bar, self.weight, self.bias, place.words, place.offsets, place.capacity
        )
        values, places = log_p.topk(k, 1)
        return values, place.words[places]

    def draw(self, hidden: Tensor, log_cluster: Tensor, generator: torch.Generator | None) -> Tensor:
        """A cluster from P(c|h), then a word from P(w|c, h): one cluster is opened a row; (T,)."""
        cluster = torch.multinomial(log_cluster.exp(), 1, generator=generator)  # (T, 1)
        inside = self.open(hidden, log_cluster, cluster).squeeze(1)  # (T, S)
        return self.words_at(cluster, torch.multinomial(inside.softmax(1), 1, generator=generator)).squeeze(1)
