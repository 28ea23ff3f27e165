"""The word level for search: all words of some rows, or only the clusters that each row needs, without padding.

Shapes: T rows, D width, V words, C clusters, N places for words that stand alone, S words of a cluster, P pairs of a
row and a cluster to open, R distinct rows and Q distinct clusters of the pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.cpu import spread
from coterie.loss.dispatch import HAS_TRITON

if TYPE_CHECKING:
    from coterie.search.triton import GpuWords

# Words to gather at a time: they are still in the cache when they are multiplied, and need little memory.
BLOCK = 2048
# From so many rows on, clusters are normalised one by one, on all cores.
MANY_ROWS = 32
# With so few clusters, or numbers, the work is done before threads have started.
FEW_CLUSTERS = 4
FEW_NUMBERS = 1 << 20
# The overhead of a product for one cluster, in products of two vectors.
ASKING = 1 << 13


@dataclass(frozen=True)
class Words:
    """The word level: vectors, biases and the partition."""

    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)
    partition: Partition

    @cached_property
    def bounds(self) -> list[int]:
        """`partition.offsets` as a list."""
        bounds: list[int] = self.partition.offsets.tolist()
        return bounds

    def members(self, cluster: int) -> Tensor:
        """The words of a cluster, (S,)."""
        return self.partition.words[self.bounds[cluster] : self.bounds[cluster + 1]]

    def logits(self, hidden: Tensor) -> Tensor:
        """h_w · U^V + b: (T, D) → (T, V), in float32 at least."""
        if hidden.device.type == "cpu" and not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
            return self.logits_by_word(hidden).T.contiguous()
        exact = hidden.dtype == self.weight.dtype and hidden.dtype in (torch.float32, torch.float64)
        if exact and not torch.is_autocast_enabled(hidden.device.type):
            return F.linear(hidden, self.weight, self.bias)
        return self._add_bias(hidden @ self.weight.to(hidden.dtype).T, self.bias)

    def logits_by_word(self, hidden: Tensor) -> Tensor:
        """The same transposed, (T, D) → (V, T), so that gathering the words of a cluster copies whole rows."""
        # A product with one vector runs on one core; with the vector twice, it runs on all and takes half the time.
        columns = (hidden.expand(2, -1).contiguous() if hidden.shape[0] == 1 else hidden).T
        logits = (self.weight.to(hidden.dtype) @ columns)[:, : hidden.shape[0]]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.bias is None else logits + self.bias[:, None]

    def logits_of(self, hidden: Tensor, words: Tensor, scratch: Tensor | None = None) -> Tensor:
        """Logits of some `words` (S,): (T, D) → (T, S), in float32 at least; gathers them into `scratch` (≥ S, D)."""
        if scratch is None:
            rows = self.weight.index_select(0, words)
        else:
            rows = torch.index_select(self.weight, 0, words, out=scratch[: words.numel()])
        return self._add_bias(
            hidden @ rows.to(hidden.dtype).T, None if self.bias is None else self.bias.index_select(0, words)
        )

    @staticmethod
    def _add_bias(logits: Tensor, bias: Tensor | None) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if bias is None else logits + bias

    def log_prob(self, hidden: Tensor, log_root: Tensor) -> Tensor:
        """log P(w|h) for every word: (T, D), (T, C + N) → (T, V)."""
        if gpu := on_gpu(self, hidden):
            return gpu.log_prob(hidden, log_root)
        if hidden.is_cuda or torch.compiler.is_compiling():
            return self._log_prob_without_a_loop(hidden, log_root)
        if hidden.shape[0] < MANY_ROWS and not torch.is_grad_enabled():
            return self._log_prob_without_a_loop(hidden, log_root)
        return self.log_prob_in_order(hidden, log_root).index_select(1, self.partition.position)

    def _log_prob_without_a_loop(self, hidden: Tensor, log_root: Tensor) -> Tensor:
        """For a GPU and for few rows, where one call per cluster is slow, and for torch.compile with static shapes."""
        logits = self.logits(hidden)
        # Words that stand alone are computed as if they were one more cluster, and then replaced.
        cluster_of, n_clusters = self.partition.cluster_of, self.partition.n_clusters
        log_cluster = F.pad(log_root[:, :n_clusters], (0, 1))  # (T, C + 1)
        # The maximum of each cluster only keeps exp() in range and needs no gradient.
        top = torch.full_like(log_cluster, -torch.inf, dtype=logits.dtype)
        top = top.scatter_reduce(1, cluster_of.expand_as(logits), logits.detach(), "amax")  # -inf: empty
        shifted = logits - top[:, cluster_of]
        total = torch.zeros_like(top).index_add(1, cluster_of, shifted.exp())  # at least 1; 0 for an empty cluster
        log_prob = shifted + (log_cluster - total.clamp(min=1).log())[:, cluster_of]
        if not self.partition.n_own:
            return log_prob
        every = torch.arange(self.partition.n_words, device=log_prob.device)
        return torch.where(cluster_of == n_clusters, log_root[:, self.partition.column(every)], log_prob)

    def log_prob_in_order(self, hidden: Tensor, log_root: Tensor) -> Tensor:
        """The same as `log_prob`, with the words in the partition's order."""
        *sizes, n_alone = self.partition.offsets.diff().tolist()
        alone = log_root[:, len(sizes) : len(sizes) + n_alone]
        if torch.is_grad_enabled():
            *parts, _ = torch.split(self.logits(hidden).index_select(1, self.partition.words), [*sizes, n_alone], 1)
            return torch.cat([*(part.log_softmax(1) + log_root[:, c, None] for c, part in enumerate(parts)), alone], 1)
        by_word = self.logits_by_word(hidden)
        log_prob = by_word.new_empty(by_word.shape[::-1])
        *places, last = torch.split(log_prob, [*sizes, n_alone], 1)
        last.copy_(alone)

        def run(clusters: Iterator[int]) -> None:
            for c in clusters:
                found = by_word.index_select(0, self.members(c)).log_softmax(0)
                torch.add(found.T, log_root[:, c, None], out=places[c])

        spread(run, range(len(places)), _threads(log_prob))
        return log_prob

    def heads_of_clusters(self, by_word: Tensor) -> tuple[Tensor, Tensor]:
        """log P(w|c, h) of each cluster's best word (-inf for an empty cluster), and log Z: (V, T) → (T, C) both."""
        best = by_word.new_full((self.partition.n_clusters, by_word.shape[1]), -torch.inf)  # (C, T)
        mass = torch.zeros_like(best)

        def run(clusters: Iterator[int]) -> None:
            for c in clusters:
                found = by_word.index_select(0, self.members(c))  # (S, T)
                # log Z = the maximum before minus the maximum after a log-softmax, five times as fast as a logsumexp.
                torch.amax(found.log_softmax(0), 0, out=best[c])
                torch.sub(found.amax(0), best[c], out=mass[c])

        filled = [c for c, size in enumerate(self.partition.sizes.tolist()) if size]
        spread(run, filled, _threads(by_word))
        return best.T, mass.T

    def open(self, hidden: Tensor, row: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
        """log P(w|c, h) and w for pairs of `row` (P,) and `cluster` (P,): both (P, S), -inf after the last word.

        `hidden` (T, D); S is the size of the largest of these clusters.
        """
        sizes, offsets = self.partition.sizes, self.partition.offsets
        order = cluster.argsort(stable=True)
        distinct, counts = cluster[order].unique_consecutive(return_counts=True)  # (Q,)
        rows, row_at = row.unique(return_inverse=True)  # (R,), (P,)
        column = torch.arange(int(sizes[distinct].max()), device=cluster.device)  # (S,)
        inside = column < sizes[cluster, None]  # (P, S)
        place = offsets[cluster, None] + torch.where(inside, column, 0)  # (P, S)
        # One product of all these rows with all these words computes some in vain; one per cluster costs Python calls.
        unasked = int((sizes[distinct] * (rows.numel() - counts)).sum())
        if unasked < ASKING * distinct.numel():
            logits, starts = self._logits_together(hidden[rows], distinct)
            at = starts[cluster, None] + torch.where(inside, column, 0)
            found = logits.view(-1)[row_at[:, None] * logits.shape[1] + at]
        else:
            found = self._logits_one_by_one(hidden[row[order]], distinct.tolist(), counts.tolist(), column.numel())
            found = torch.empty_like(found).index_copy_(0, order, found)
        return found.masked_fill_(~inside, -torch.inf).log_softmax(1), self.partition.words[place]

    def _logits_together(self, hidden: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of all words of some `clusters` (Q,): (R, D) → (R, words), and where each cluster begins, (C,)."""
        sizes = self.partition.sizes[clusters]
        begin = sizes.cumsum(0) - sizes
        starts = torch.zeros_like(self.partition.sizes).index_copy_(0, clusters, begin)
        shift = (self.partition.offsets[clusters] - begin).repeat_interleave(sizes)
        words = self.partition.words[torch.arange(shift.numel(), device=shift.device) + shift]
        return self._logits_in_blocks(hidden, words), starts

    def _logits_in_blocks(self, hidden: Tensor, words: Tensor) -> Tensor:
        """The same as `logits_of`, for many words."""
        if words.device.type != "cpu" or words.numel() <= BLOCK:
            return self.logits_of(hidden, words)
        logits = hidden.new_empty(
            hidden.shape[0], words.numel(), dtype=torch.promote_types(hidden.dtype, torch.float32)
        )
        blocks, parts = words.split(BLOCK), logits.split(BLOCK, 1)

        def run(places: Iterator[int]) -> None:
            scratch = self.weight.new_empty(BLOCK, self.weight.shape[1])
            for at in places:
                parts[at].copy_(self.logits_of(hidden, blocks[at], scratch))

        spread(run, range(len(blocks)), torch.get_num_threads())
        return logits

    def _logits_one_by_one(self, hidden: Tensor, clusters: list[int], counts: list[int], width: int) -> Tensor:
        """Logits of each cluster's words for the rows that need it (`counts` of each), by a loop: (P, D) → (P, S)."""
        found = hidden.new_empty(hidden.shape[0], width, dtype=torch.promote_types(hidden.dtype, torch.float32))
        xs, parts = hidden.split(counts), found.split(counts)  # split at once: slicing in the loop would take long

        def run(places: Iterator[int]) -> None:
            scratch = self.weight.new_empty(width, self.weight.shape[1])
            for at in places:
                words = self.members(clusters[at])
                parts[at][:, : words.numel()] = self.logits_of(xs[at], words, scratch)

        spread(run, range(len(clusters)), _threads(self.weight) if len(clusters) > FEW_CLUSTERS else 1)
        return found


def on_gpu(words: Words, hidden: Tensor) -> "GpuWords | None":
    """The words for the kernels to search; None if they cannot: not on a GPU, or with gradients enabled."""
    if not hidden.is_cuda or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    if not HAS_TRITON or hidden.dtype == torch.float64:
        return None
    from coterie.search.triton import GpuWords  # imported here, because a CPU has no need of triton

    return GpuWords.of(words.weight, words.bias, words.partition)


def _threads(numbers: Tensor) -> int:
    """The number of threads to use: one for a few numbers, which are done before threads have started."""
    return torch.get_num_threads() if numbers.device.type == "cpu" and numbers.numel() > FEW_NUMBERS else 1
