"""Exact search on a GPU, without synchronising.

The k best words lie in the k clusters with the best words, so only the words of those clusters are sorted. If the word
matrix is so large that reading it takes most of the time, each row's most probable clusters are opened first; the k-th
best of their words is a bar, and the kernels skip all clusters that are less probable than it.

Shapes: T rows, D width, V words, C clusters, S most words in a cluster, k results; B hypotheses of a question.
"""

from typing import Self

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.kernels import search as kernels
from coterie.kernels.opening import open_clusters

CHEAP = 1 << 29  # word matrices of up to this many bytes are always read whole
FEW_ROWS = 4  # with more rows, nearly every cluster is above the bar of some row
MOST_FOUND = 1 << 28  # the most logits to hold at a time: a gigabyte
FIRST = 4  # clusters of each row to open first, for the bar


class GpuWords:
    """The word level on a GPU: vectors, biases and the partition."""

    def __init__(self, weight: Tensor, bias: Tensor | None, partition: Partition) -> None:
        self.weight, self.bias, self.partition = weight, bias, partition

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, partition: Partition) -> Self | None:
        """The words for the kernels to search; None if clusters are too large, or too many, for them."""
        return cls(weight, bias, partition) if kernels.fits(partition.capacity, partition.n_clusters) else None

    def shares(self, logits: Tensor) -> Tensor:
        """log P(c|h), -inf for empty clusters, without a gradient: (T, C) → (T, C)."""
        return kernels.shares(logits, self.partition.offsets)

    def log_prob(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """log P(w|h) of every word, without a gradient: (T, D), (T, C) → (T, V)."""
        place = self.partition
        logits = self._logits(hidden, log_cluster, None)
        return kernels.normalize(logits, log_cluster, place.words, place.offsets, place.capacity)

    def open(self, hidden: Tensor, log_cluster: Tensor, clusters: Tensor) -> Tensor:
        """log P(w|h) of the words of each row's `clusters` (T, W): (T, W, S), -inf after a cluster's last word."""
        place = self.partition
        return open_clusters(
            hidden, log_cluster, self.weight, self.bias, place.words, place.offsets, clusters, place.capacity
        )

    def words_at(self, clusters: Tensor, places: Tensor) -> Tensor:
        """The words at indices `places` (T, k) of the flattened result of `open` for `clusters` (T, W): (T, k)."""
        capacity = self.partition.capacity
        cluster = clusters.gather(1, places // capacity)
        at = self.partition.offsets[cluster] + places % capacity
        return self.partition.words[at.clamp(max=self.partition.n_words - 1)]

    def topk(self, hidden: Tensor, cluster_logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable words, best first: log P(w|h) and the words, both (T, k).

        `cluster_logits` (T, C): log P(c|h) up to a constant per row.
        """
        rows = max(1, MOST_FOUND // self.partition.n_words)
        parts = zip(hidden.split(rows), cluster_logits.split(rows), strict=True)
        found = [self._topk(few, logits, k) for few, logits in parts]
        if len(found) == 1:
            return found[0]
        return torch.cat([values for values, _ in found]), torch.cat([words for _, words in found])

    def extend(self, hidden: Tensor, cluster_logits: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
        """The k best extensions of B hypotheses together: log P of hypothesis and word, and b · V + w, both (T, k).

        `hidden` (T · B, D), `cluster_logits` (T · B, C), `score` (T, B), -inf for an unused place. None if too many.
        """
        if not self._few(k) or hidden.shape[0] * self.partition.n_words > MOST_FOUND:
            return None
        values, words = self._best(hidden, cluster_logits, k, None, score.flatten().contiguous(), score.shape[1])
        return values.to(score.dtype), words

    def _few(self, k: int) -> bool:
        """Whether k clusters are certain to hold less than all words."""
        return k * self.partition.capacity < self.partition.n_words

    def _topk(self, hidden: Tensor, cluster_logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """`topk` of rows that fit into memory together."""
        if not self._few(max(k, FIRST)):
            found = self.log_prob(hidden, self.shares(cluster_logits)).topk(k, 1)
            return found.values, found.indices
        few = hidden.shape[0] <= FEW_ROWS and k <= FIRST * self.partition.capacity
        if self.weight.nbytes <= CHEAP or not few:
            return self._best(hidden, cluster_logits, k, None, None, 1)
        log_cluster = self.shares(cluster_logits)
        return self._best(hidden, log_cluster, k, self._bar(hidden, log_cluster, k), None, 1)

    def _bar(self, hidden: Tensor, log_cluster: Tensor, k: int) -> Tensor:
        """log P of the k-th best word in each row's FIRST best clusters, (T,); -inf if fewer; k ≤ FIRST · S."""
        lowest, clusters = log_cluster.topk(FIRST, 1)
        lowest = lowest[:, -1].contiguous()
        logits = self._logits(hidden, log_cluster, lowest)
        values, _ = self._members(logits, log_cluster, clusters, lowest, None, 1)
        return values.topk(k, 1).values[:, -1].contiguous()

    def _best(
        self, hidden: Tensor, cluster_logits: Tensor, k: int, bar: Tensor | None, score: Tensor | None,
        n_hypotheses: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The k best extensions of each question: values and b · V + w, both (T, k)."""
        place = self.partition
        logits = self._logits(hidden, cluster_logits, bar)
        peaks = kernels.peaks(logits, cluster_logits, place.offsets, place.capacity, bar, score)
        pairs = peaks.view(-1, n_hypotheses * peaks.shape[1]).topk(k, 1, sorted=False).indices
        values, words = self._members(logits, cluster_logits, pairs, bar, score, n_hypotheses)
        values, places = values.topk(k, 1)
        return values, words.gather(1, places)

    def _logits(self, hidden: Tensor, log_cluster: Tensor, bar: Tensor | None) -> Tensor:
        """Logits of all words whose cluster is above some row's bar, in the partition's order: (T, V)."""
        place = self.partition
        return kernels.logits_in_order(hidden, self.weight, self.bias, place.words, place.cluster_of, log_cluster, bar)

    def _members(
        self, logits: Tensor, cluster_logits: Tensor, pairs: Tensor, bar: Tensor | None, score: Tensor | None,
        n_hypotheses: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """log P(w|h) and the words of the clusters that `pairs` (T, P) name, both (T, P · S)."""
        place = self.partition
        return kernels.members(
            logits, cluster_logits, pairs, place.words, place.offsets, place.capacity, bar, score, n_hypotheses
        )

    def draw(self, hidden: Tensor, log_cluster: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draws a cluster from P(c|h), then a word from P(w|c, h), (T,): this opens one cluster per row."""
        cluster = torch.multinomial(log_cluster.exp(), 1, generator=generator)  # (T, 1)
        inside = self.open(hidden, log_cluster, cluster).squeeze(1)  # (T, S)
        return self.words_at(cluster, torch.multinomial(inside.softmax(1), 1, generator=generator)).squeeze(1)
