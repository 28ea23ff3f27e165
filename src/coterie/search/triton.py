"""Exact search on a GPU, without synchronising.

The k best words lie in the k clusters with the best words, so only the words of those clusters are sorted. If the word
matrix is so large that reading it takes most of the time, each row's most probable clusters are opened first; the k-th
best of their words is a bar, and the kernels skip all clusters that are less probable than it.

The words that stand alone are searched as one more cluster, with the logits that they have in the root.

Shapes: T rows, D width, V words, C clusters, N places for words that stand alone, R = C + N columns of the root, S most
words in a cluster, k results; B hypotheses of a question.
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
        self.capacity = max(partition.capacity, partition.n_own)

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, partition: Partition) -> Self | None:
        """The words for the kernels to search; None if clusters are too large, or too many, for them."""
        n_columns = partition.n_clusters + partition.n_own
        return cls(weight, bias, partition) if kernels.fits(partition.capacity, n_columns) else None

    def shares(self, logits: Tensor) -> Tensor:
        """log P of the root's columns, -inf for empty ones, without a gradient: (T, R) → (T, R)."""
        return kernels.shares(logits, self.partition.root_sizes)

    def log_prob(self, hidden: Tensor, log_root: Tensor) -> Tensor:
        """log P(w|h) of every word, without a gradient: (T, D), (T, R) → (T, V)."""
        place, log_cluster = self.partition, self._clusters(log_root)
        logits = self._logits(hidden, log_root, log_cluster, None)
        return kernels.normalize(logits, log_cluster, place.words, place.offsets, self.capacity)

    def _clusters(self, root: Tensor) -> Tensor:
        """The clusters' logits, with the words that stand alone as the last: (T, R) → (T, C + 1)."""
        if not self.partition.n_own:
            return root
        return kernels.collapse(root, self.partition.root_sizes, self.partition.n_clusters)

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

    def topk(self, hidden: Tensor, root: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable words, best first: log P(w|h) and the words, both (T, k).

        `root` (T, R): log P of the root's columns up to a constant per row.
        """
        rows = max(1, MOST_FOUND // self.partition.n_words)
        parts = zip(hidden.split(rows), root.split(rows), strict=True)
        found = [self._topk(few, logits, k) for few, logits in parts]
        if len(found) == 1:
            return found[0]
        return torch.cat([values for values, _ in found]), torch.cat([words for _, words in found])

    def extend(self, hidden: Tensor, root: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
        """The k best extensions of B hypotheses together: log P of hypothesis and word, and b · V + w, both (T, k).

        `hidden` (T · B, D), `root` (T · B, R), `score` (T, B), -inf for an unused place. None if too many.
        """
        if not self._few(k) or hidden.shape[0] * self.partition.n_words > MOST_FOUND:
            return None
        scores, clusters = score.flatten().contiguous(), self._clusters(root)
        values, words = self._best(hidden, root, clusters, k, None, scores, score.shape[1])
        return values.to(score.dtype), words

    def _few(self, k: int) -> bool:
        """Whether k clusters are certain to hold less than all words."""
        return k * self.capacity < self.partition.n_words

    def _topk(self, hidden: Tensor, root: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """`topk` of rows that fit into memory together."""
        if not self._few(max(k, FIRST)):
            found = self.log_prob(hidden, self.shares(root)).topk(k, 1)
            return found.values, found.indices
        few = hidden.shape[0] <= FEW_ROWS and k <= FIRST * self.capacity
        if self.weight.nbytes <= CHEAP or not few:
            return self._best(hidden, root, self._clusters(root), k, None, None, 1)
        root = self.shares(root)
        log_cluster = self._clusters(root)
        return self._best(hidden, root, log_cluster, k, self._bar(hidden, root, log_cluster, k), None, 1)

    def _bar(self, hidden: Tensor, root: Tensor, log_cluster: Tensor, k: int) -> Tensor:
        """log P of the k-th best word in each row's FIRST best clusters, (T,); -inf if fewer; k ≤ FIRST · S."""
        lowest, clusters = log_cluster.topk(FIRST, 1)
        lowest = lowest[:, -1].contiguous()
        logits = self._logits(hidden, root, log_cluster, lowest)
        values, _ = self._members(logits, log_cluster, clusters, lowest, None, 1)
        return values.topk(k, 1).values[:, -1].contiguous()

    def _best(
        self, hidden: Tensor, root: Tensor, clusters: Tensor, k: int, bar: Tensor | None, score: Tensor | None,
        n_hypotheses: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The k best extensions of each question: values and b · V + w, (T, k) both. `clusters`: see `_clusters`."""
        place = self.partition
        logits = self._logits(hidden, root, clusters, bar)
        peaks = kernels.peaks(logits, clusters, place.offsets, self.capacity, bar, score)
        pairs = peaks.view(-1, n_hypotheses * peaks.shape[1]).topk(k, 1, sorted=False).indices
        values, words = self._members(logits, clusters, pairs, bar, score, n_hypotheses)
        values, places = values.topk(k, 1)
        return values, words.gather(1, places)

    def _logits(self, hidden: Tensor, root: Tensor, clusters: Tensor, bar: Tensor | None) -> Tensor:
        """Logits of all words whose cluster is above some row's bar, in the partition's order: (T, V)."""
        place = self.partition
        return kernels.logits_in_order(
            hidden, self.weight, self.bias, place.words, place.cluster_of, place.offsets, root, clusters, bar
        )

    def _members(
        self, logits: Tensor, clusters: Tensor, pairs: Tensor, bar: Tensor | None, score: Tensor | None,
        n_hypotheses: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """log P(w|h) and the words of the clusters that `pairs` (T, P) name, both (T, P · S)."""
        place = self.partition
        return kernels.members(
            logits, clusters, pairs, place.words, place.offsets, self.capacity, bar, score, n_hypotheses
        )

    def draw(self, hidden: Tensor, log_root: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draws a column of the root, then, in a cluster, a word from P(w|c, h), (T,): this opens one cluster a row."""
        place, n_clusters = self.partition, self.partition.n_clusters
        column = torch.multinomial(log_root.exp(), 1, generator=generator)  # (T, 1)
        cluster, alone = column.clamp(max=n_clusters - 1), column >= n_clusters
        inside = self.open(hidden, log_root, cluster).squeeze(1).masked_fill(alone, 0.0)  # (T, S)
        drawn = self.words_at(cluster, torch.multinomial(inside.softmax(1), 1, generator=generator))
        if place.n_own:
            drawn = torch.where(alone, place.slots[(column - n_clusters).clamp(min=0)], drawn)
        return drawn.squeeze(1)
