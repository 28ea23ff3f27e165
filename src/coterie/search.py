"""Exact answers without computing all V words: the k best.

A word is never more probable than its cluster, P(w|h) ≤ P(c|h). So clusters are opened in descending P(c|h), and a row
is finished once its k-th best word beats the next cluster. A flat distribution would open nearly all of them, slower
than one large product: after a small share of what that would cost, rows not yet finished are answered densely, unless
the clusters still in question are certain to cost less.

Costs are counted in products of one hidden vector with one word vector.

Shapes: T rows, D width, V words, C clusters, S words of a cluster, k answers, P pairs of a row and a cluster to open.
"""

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.backend import HAS_TRITON
from coterie.partition import Partition
from coterie.workers import spread

if TYPE_CHECKING:
    from coterie.search_gpu import GpuWords

# What fetching a word's vector costs: by its number, and one after the other in one large product.
FETCH, STREAM = 48, 16
# By its number for some rows of many, who asked for what and the best of each put together included.
SHARED_FETCH = 112
# So few words are all computed before a search has begun.
SMALL = 1 << 15
# The share of the dense cost that may be spent before it is known whether searching costs less.
TRIAL = 0.15
# Rows in which, after this many clusters, half of the vocabulary is still in question are flat: no more is tried.
FIRST_LOOK = 3
# For one row, clusters of so many words are opened together, and of half as many as are open already: they might have
# been spared, but asking for a cluster takes as long as fetching a few hundred words.
TOGETHER = 1024
# From so many rows on, all words are computed with a row of numbers for each word.
MANY_ROWS = 8
# Rows that tell what the others of a batch will be like, and the share of the dense cost below which a search is worth
# while: no row is like another, and the dense cost is certain.
PILOTS, WORTH = 4, 0.6
# Words a wave may find: more would take too much memory.
MOST_FOUND = 1 << 24
# So few clusters are opened before threads have begun.
FEW_CLUSTERS = 4
FEW_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Opened:
    """One opened cluster."""

    pairs: Tensor  # (N,) which of the pairs asked for it
    words: Tensor  # (S,)
    log_prob: Tensor  # (N, S) log P(w|c, h)


@dataclass(frozen=True)
class Words:
    """The word level: vectors, biases, and who sits with whom."""

    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)
    partition: Partition

    @cached_property
    def bounds(self) -> list[int]:
        """`partition.offsets` as whole numbers."""
        bounds: list[int] = self.partition.offsets.tolist()
        return bounds

    def members(self, cluster: int) -> Tensor:
        """The words of a cluster, (S,)."""
        return self.partition.words[self.bounds[cluster] : self.bounds[cluster + 1]]

    def logits(self, hidden: Tensor) -> Tensor:
        """h_w · U^V + b: (T, D) → (T, V), in float32 at least."""
        if hidden.dtype == self.weight.dtype and hidden.dtype in (torch.float32, torch.float64):
            return self._in_full(F.linear(hidden, self.weight, self.bias), None)  # narrower in autocast
        return self._in_full(hidden @ self.weight.to(hidden.dtype).T, self.bias)

    def logits_by_word(self, hidden: Tensor) -> Tensor:
        """The same with a row a word: (T, D) → (V, T). Rows of many numbers are quick to pick by cluster."""
        logits = self.weight.to(hidden.dtype) @ hidden.T
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.bias is None else logits.add_(self.bias[:, None])

    def logits_of(self, hidden: Tensor, words: Tensor, scratch: Tensor | None = None) -> Tensor:
        """Of some words (S,): (T, D) → (T, S), in float32 at least. `scratch` (S or more, D): where to fetch them."""
        if scratch is None:
            rows = self.weight.index_select(0, words)
        else:
            rows = torch.index_select(self.weight, 0, words, out=scratch[: words.numel()])
        return self._in_full(
            hidden @ rows.to(hidden.dtype).T, None if self.bias is None else self.bias.index_select(0, words)
        )

    @staticmethod
    def _in_full(logits: Tensor, bias: Tensor | None) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if bias is None else logits + bias

    def log_prob(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """log P(w|h) for every word: (T, D), (T, C) → (T, V)."""
        if gpu := on_gpu(self, hidden):
            return gpu.log_prob(hidden, log_cluster)
        if hidden.is_cuda or torch.compiler.is_compiling():
            return self._log_prob_without_a_loop(hidden, log_cluster)
        if hidden.shape[0] < MANY_ROWS and not torch.is_grad_enabled():
            return self._log_prob_without_a_loop(hidden, log_cluster)
        return self.log_prob_in_order(hidden, log_cluster).index_select(1, self.partition.position)

    def _log_prob_without_a_loop(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """For a GPU and for few rows, where calls cost too much, and for a compiler, to which sizes are not known."""
        logits = self.logits(hidden)
        cluster_of = self.partition.cluster_of
        # The largest logit of each cluster is only there to keep exp() in range: no gradient passes through it.
        top = torch.full_like(log_cluster, -torch.inf, dtype=logits.dtype)
        top = top.scatter_reduce(1, cluster_of.expand_as(logits), logits.detach(), "amax")  # (T, C), -inf: empty
        shifted = logits - top[:, cluster_of]
        total = torch.zeros_like(top).index_add(1, cluster_of, shifted.exp())  # at least 1, 0: an empty cluster
        return shifted + (log_cluster - total.clamp(min=1).log())[:, cluster_of]

    def log_prob_in_order(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """The same with the words in the partition's order."""
        sizes = self.partition.sizes.tolist()
        if torch.is_grad_enabled():
            parts = torch.split(self.logits(hidden).index_select(1, self.partition.words), sizes, 1)
            return torch.cat([part.log_softmax(1) + log_cluster[:, c, None] for c, part in enumerate(parts)], 1)
        by_word = self.logits_by_word(hidden)
        log_prob = by_word.new_empty(by_word.shape[::-1])
        parts = torch.split(log_prob, sizes, 1)

        def run(clusters: Iterator[int]) -> None:
            for c in clusters:
                found = by_word.index_select(0, self.members(c)).log_softmax(0)
                torch.add(found.T, log_cluster[:, c, None], out=parts[c])

        spread(run, range(len(parts)), _threads(log_prob))
        return log_prob

    def open(self, work: Callable[[Opened], None], hidden: Tensor, row: Tensor, cluster: Tensor) -> None:
        """Opens clusters for rows, pair by pair, (P,) and (P,); calls `work` once for each distinct cluster."""
        order = cluster.argsort(stable=True)
        distinct, counts = cluster[order].unique_consecutive(return_counts=True)
        clusters, pairs = distinct.tolist(), order.split(counts.tolist())

        def run(places: Iterator[int]) -> None:
            scratch = self.weight.new_empty(self.partition.capacity, self.weight.shape[1])
            for at in places:
                words = self.members(clusters[at])
                logits = self.logits_of(hidden[row[pairs[at]]], words, scratch)
                work(Opened(pairs[at], words, logits.log_softmax(1)))

        spread(run, range(len(clusters)), _threads(self.weight) if len(clusters) > FEW_CLUSTERS else 1)


def on_gpu(words: Words, hidden: Tensor) -> "GpuWords | None":
    """The words as the kernels search them, where they can: on a GPU, and where no gradient is asked for."""
    if not hidden.is_cuda or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    if not HAS_TRITON or hidden.dtype == torch.float64:
        return None
    from coterie.search_gpu import GpuWords  # imported when it is first used: a CPU does without triton

    return GpuWords.of(words.weight, words.bias, words.partition)


def _threads(numbers: Tensor) -> int:
    """How many threads to work on so many numbers with: a few are done before threads have begun."""
    return torch.get_num_threads() if numbers.device.type == "cpu" and numbers.numel() > FEW_NUMBERS else 1


def topk(words: Words, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable words, best first: log P(w|h) and the words, both (T, k).

    `hidden` (T, D), `log_cluster` (T, C).
    """
    if gpu := on_gpu(words, hidden):
        return gpu.topk(hidden, log_cluster, k)
    if hidden.is_cuda or torch.compiler.is_compiling():
        values, indices = words.log_prob(hidden, log_cluster).topk(k, -1)
        return values, indices
    values, indices = attempt(words, hidden, log_cluster, k)
    unfinished = (values[:, -1] == -torch.inf).nonzero().squeeze(1)
    if unfinished.numel():
        rows, shares = hidden[unfinished], log_cluster[unfinished]
        if unfinished.numel() < MANY_ROWS:
            values[unfinished], indices[unfinished] = words.log_prob(rows, shares).topk(k, -1)
        else:
            dense = words.log_prob_in_order(rows, shares).topk(k, -1)
            values[unfinished], indices[unfinished] = dense.values, words.partition.words[dense.indices]
    return values, indices


def attempt(words: Words, hidden: Tensor, log_cluster: Tensor, k: int, limit: float = 1.0) -> tuple[Tensor, Tensor]:
    """As `topk`, without the rows that cost less to answer densely: their last value is -inf.

    `limit`: the share of the dense cost that may be spent once it is certain to suffice; a trial goes before.
    """
    n_rows = hidden.shape[0]
    values = log_cluster.new_full((n_rows, k), -torch.inf)
    indices = torch.zeros((n_rows, k), dtype=torch.int64, device=hidden.device)
    too_many = k * FETCH >= TRIAL * dense_cost(words, n_rows)
    if not n_rows or too_many or words.partition.n_words < SMALL:
        return values, indices
    if n_rows > 4 * PILOTS:
        # A few rows go first, and tell how many clusters all of them together will have opened.
        few = torch.arange(PILOTS, device=hidden.device) * (n_rows // PILOTS)
        tried, _ = attempt(words, hidden[few], log_cluster[few], k, limit=0)
        share = float((log_cluster[few] > tried[:, -1:]).double().mean())  # of the clusters, a row
        opened = SHARED_FETCH * (1 - (1 - share) ** n_rows) + 2 * share * n_rows
        if opened * words.partition.n_words > WORTH * dense_cost(words, n_rows):
            return values, indices
    search = _one_row if n_rows == 1 else _by_waves
    search(words, hidden, log_cluster, values, indices, limit)
    return values, indices


def dense_cost(words: Words, n_rows: int) -> int:
    """Of computing all words of some rows."""
    return words.partition.n_words * (STREAM + n_rows)


def opening_cost(sizes: Tensor, cluster: Tensor, fetch: int = FETCH) -> int:
    """Of clusters (P,), each fetched once for all who ask for it; `sizes` (C,)."""
    asked = torch.bincount(cluster, minlength=sizes.numel())
    # A product and a place among the best for every word of every row.
    return int((sizes * (fetch * (asked > 0) + 2 * asked)).sum())


def _one_row(words: Words, hidden: Tensor, log_cluster: Tensor, values: Tensor, indices: Tensor, limit: float) -> None:
    """A single row, a few clusters at a time: writes what it finds to values and indices (1, k)."""
    ordered, by_rank = log_cluster[0].sort(descending=True)
    ranked, clusters, sizes = ordered.tolist(), by_rank.tolist(), words.partition.sizes[by_rank].tolist()
    dense, best, found, worst = dense_cost(words, 1), values[0], indices[0], -math.inf
    opened = list(itertools.accumulate(sizes, initial=0))  # (C + 1,) words of the first clusters
    together = min(TOGETHER, words.partition.n_words >> 6)
    allowance, rank, looked = TRIAL * dense, 0, False
    while rank < len(clusters) and ranked[rank] > worst:
        # Clusters more probable than the k-th best word may hold a better one.
        last = bisect.bisect_left(ranked, -worst, rank, key=operator.neg)
        end = min(bisect.bisect_left(opened, opened[rank] + max(together, opened[rank] // 2)), last)
        allowance -= (opened[end] - opened[rank]) * (FETCH + 1)
        if (rank >= FIRST_LOOK and not looked) or allowance < 0:
            looked, in_question = True, opened[last] - opened[rank]
            flat = 2 * in_question > words.partition.n_words
            if in_question * (FETCH + 1) > limit * dense and (allowance < 0 or flat):
                return
            allowance = allowance if allowance >= 0 else math.inf
        ids = torch.cat([words.members(c) for c in clusters[rank:end]])
        parts = words.logits_of(hidden, ids)[0].split(sizes[rank:end])
        log_p = [part.log_softmax(0).add_(share) for part, share in zip(parts, ranked[rank:end], strict=True)]
        best, places = torch.cat((best, *log_p)).topk(values.shape[1])
        found = torch.cat((found, ids))[places]
        worst, rank = float(best[-1]), end
    values[0], indices[0] = best, found


def _by_waves(words: Words, hidden: Tensor, log_cluster: Tensor, values: Tensor, indices: Tensor, limit: float) -> None:
    """All rows together, each time twice as many of their next clusters: writes to values and indices (T, k)."""
    k = values.shape[1]
    ranked, by_rank = log_cluster.sort(1, descending=True)  # (T, C)
    sizes, n_words = words.partition.sizes, words.partition.n_words
    fetch, trial = (SHARED_FETCH, WORTH) if hidden.shape[0] > 4 * PILOTS else (FETCH, TRIAL)
    allowance = trial * dense_cost(words, hidden.shape[0])
    active = torch.arange(hidden.shape[0], device=hidden.device)
    rank, width, given_up = 0, 1, 0
    while rank < ranked.shape[1]:
        # (A, C - rank): clusters more probable than the k-th best word may hold a better one.
        in_question = ranked[active, rank:] > values[active, -1:]
        going = in_question[:, 0]
        if rank == FIRST_LOOK:
            flat = (sizes[by_rank[active, rank:]] * in_question).sum(1) * 2 > n_words
            values[active[flat]] = -torch.inf
            given_up = int(flat.sum())
            going = going & ~flat
        active, in_question = active[going], in_question[going]
        if not active.numel():
            break
        if opening_cost(sizes, by_rank[active, rank : rank + width][in_question[:, :width]], fetch) > allowance:
            # All that is left at once, so that no cluster is fetched twice, or else nothing of it.
            width = int(in_question.sum(1).max())
            rest = opening_cost(sizes, by_rank[active, rank:][in_question], fetch)
            rest += dense_cost(words, given_up) if given_up else 0
            n_found = active.numel() * width * min(k, words.partition.capacity)
            if rest > limit * dense_cost(words, given_up + active.numel()) or n_found > MOST_FOUND:
                values[active] = -torch.inf
                break
            allowance = math.inf
        next_clusters, asked = by_rank[active, rank : rank + width], in_question[:, :width]  # (A, W)
        allowance -= opening_cost(sizes, next_clusters[asked], fetch)
        found_values, found_words = _open_wave(words, hidden, log_cluster, active, next_clusters, asked, k)
        best = torch.cat((values[active], found_values), 1).topk(k, 1)
        values[active] = best.values
        indices[active] = torch.cat((indices[active], found_words), 1).gather(1, best.indices)
        rank, width = rank + width, 2 * width


def _open_wave(
    words: Words, hidden: Tensor, log_cluster: Tensor, active: Tensor, clusters: Tensor, asked: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The best words of the clusters (A, W) of the active rows (A,) where asked for (A, W): (A, W · min(k, S)) each."""
    per_cluster = min(k, words.partition.capacity)
    at, column = asked.nonzero(as_tuple=True)  # (P,)
    row, cluster = active[at], clusters[at, column]
    shape = (*clusters.shape, per_cluster)
    values = log_cluster.new_full(shape, -torch.inf)
    found = torch.zeros(shape, dtype=torch.int64, device=hidden.device)

    def keep(part: Opened) -> None:
        best = part.log_prob.topk(min(per_cluster, part.words.numel()), 1)
        n, which = best.values.shape[1], part.pairs
        values[at[which], column[which], :n] = best.values + log_cluster[row[which], cluster[which], None]
        found[at[which], column[which], :n] = part.words[best.indices]

    words.open(keep, hidden, row, cluster)
    return values.flatten(1), found.flatten(1)
