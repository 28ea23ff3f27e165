"""Exact search on a GPU: whole waves of clusters at a time, and one look from the host after each.

A launch and a look cost more than a product of a hundred megabytes, so a search that would read less than that is
dense from the start. Otherwise every row opens its few most probable clusters at once; rows whose k-th best word is
then beaten by the next cluster open more, and what is still open after that is answered densely.

Shapes: T rows, D width, V words, C clusters, S most words in a cluster, k answers.
"""

from typing import Self

import torch
from torch import Tensor

from coterie.kernels import search as kernels
from coterie.partition import Partition

CHEAP = 2**29  # bytes that a dense search may move
WAVES = (4, 16)  # clusters opened, one wave after the other


class GpuWords:
    """The word level on a GPU: vectors, biases, and who sits with whom."""

    def __init__(self, weight: Tensor, bias: Tensor | None, partition: Partition) -> None:
        self.weight, self.bias, self.partition = weight, bias, partition

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, partition: Partition) -> Self | None:
        """None where a cluster may be too large for the kernels."""
        return cls(weight, bias, partition) if kernels.fits(partition.capacity) else None

    def log_prob(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """log P(w|h) of every word, without a gradient: (T, D), (T, C) → (T, V)."""
        with torch.autocast(hidden.device.type, enabled=False):
            weight = self.weight.to(hidden.dtype)
            if hidden.dtype == torch.float32:
                logits = hidden @ weight.T
            else:  # the sums as they are, not rounded
                logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
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
        (n_words, width), n_rows = self.weight.shape, hidden.shape[0]
        moved = hidden.element_size() * n_words * width + 12 * n_rows * n_words
        if moved <= CHEAP or k > WAVES[0] * self.partition.capacity:
            return _best(self.log_prob(hidden, log_cluster), k)
        found: tuple[Tensor, Tensor] | None = None
        left = torch.arange(n_rows, device=hidden.device)
        done = 0
        for wave in WAVES:
            wave = min(wave, log_cluster.shape[1] - done)
            rows, shares = hidden[left], log_cluster[left]
            ranked = shares.topk(min(done + wave + 1, shares.shape[1]), 1)
            clusters = ranked.indices[:, done : done + wave]
            opened = self.open(rows, shares, clusters).flatten(1)
            best = opened.topk(min(k, opened.shape[1]), 1)
            best_words = self.words_at(clusters, best.indices)
            if found is None:
                found = best.values, best_words
            else:
                _put(found, left, _merged(found[0][left], found[1][left], best.values, best_words, k))
            done += wave
            if done >= shares.shape[1]:
                return found
            # Written so that a row of NaN goes on, to the dense answer.
            left = left[~(found[0][left, -1] >= ranked.values[:, done])]
            if not left.numel():
                return found
        assert found is not None
        _put(found, left, _best(self.log_prob(hidden[left], log_cluster[left]), k))
        return found

    def draw(self, hidden: Tensor, log_cluster: Tensor, generator: torch.Generator | None) -> Tensor:
        """A cluster from P(c|h), then a word from P(w|c, h): one cluster is opened a row; (T,)."""
        cluster = torch.multinomial(log_cluster.exp(), 1, generator=generator)  # (T, 1)
        inside = self.open(hidden, log_cluster, cluster).squeeze(1)  # (T, S)
        return self.words_at(cluster, torch.multinomial(inside.softmax(1), 1, generator=generator)).squeeze(1)


def _best(log_prob: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = log_prob.topk(k, 1)
    return values, indices


def _merged(values: Tensor, words: Tensor, more: Tensor, more_words: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The best k of two lists."""
    best = torch.cat((values, more), 1).topk(k, 1)
    return best.values, torch.cat((words, more_words), 1).gather(1, best.indices)


def _put(found: tuple[Tensor, Tensor], rows: Tensor, better: tuple[Tensor, Tensor]) -> None:
    for old, new in zip(found, better, strict=True):
        old[rows] = new
