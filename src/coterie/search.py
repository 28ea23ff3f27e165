"""Exact answers without computing all V words: top-k and sampling.

A word is never more probable than its cluster, P(w|h) ≤ P(c|h). So clusters are opened in descending P(c|h), and a row
is finished once its k-th best word beats the next cluster. A flat distribution would open nearly all of them, slower
than one large product; a row whose k-th best word, after a few clusters, still leaves most of the vocabulary in
question is answered densely.

Shapes: T rows, D width, V words, C clusters, S words of a cluster, k answers, P pairs of a row and a cluster to open.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.partition import Partition

# A row is finished densely when it has opened clusters that hold this share of the vocabulary,
DENSE_SHARE = 0.125
# or when, after this many clusters, those that may still matter hold half of it.
FIRST_LOOK = 3
# From this many rows on, the matrix is fetched cluster by cluster; below, one product with all of it is faster.
MANY_ROWS = 16
# Few rows open one cluster at a time: they share none, and every cluster too many is time lost.
FEW_ROWS = 4


@dataclass(frozen=True)
class Words:
    """The word level: vectors, biases, and who sits with whom."""

    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)
    partition: Partition

    def logits(self, hidden: Tensor) -> Tensor:
        """h_w · U^V + b: (T, D) → (T, V), in float32 at least."""
        logits = hidden @ self.weight.to(hidden.dtype).T
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.bias is None else logits + self.bias

    def log_prob(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """log P(w|h) for every word: (T, D), (T, C) → (T, V)."""
        if not (hidden.is_cuda or torch.compiler.is_compiling()):
            return self.log_prob_in_order(hidden, log_cluster)[:, self.partition.position]
        # No loop over the clusters: launches cost too much on a GPU, and sizes are not known to a compiler.
        logits = self.logits(hidden)
        cluster_of = self.partition.cluster_of
        # The largest logit of each cluster is only there to keep exp() in range: no gradient passes through it.
        top = torch.full_like(log_cluster, -torch.inf, dtype=logits.dtype)
        top = top.scatter_reduce(1, cluster_of.expand_as(logits), logits.detach(), "amax")  # (T, C), -inf: empty
        shifted = logits - top[:, cluster_of]
        total = torch.zeros_like(top).index_add(1, cluster_of, shifted.exp())  # at least 1, 0: an empty cluster
        return shifted + (log_cluster - total.clamp(min=1).log())[:, cluster_of]

    def log_prob_in_order(self, hidden: Tensor, log_cluster: Tensor) -> Tensor:
        """The same with the words in the partition's order, a cluster at a time."""
        sizes = self.partition.sizes.tolist()
        if hidden.shape[0] < MANY_ROWS:
            parts = self.logits(hidden)[:, self.partition.words].split(sizes, 1)
        else:
            parts = tuple(self.logits_of(hidden, ids) for ids in self.partition.words.split(sizes))
        return torch.cat([part.log_softmax(1) + log_cluster[:, c, None] for c, part in enumerate(parts)], 1)

    def logits_of(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Of some words (S,): (T, D) → (T, S), in float32 at least."""
        logits = hidden @ self.weight.index_select(0, words).to(hidden.dtype).T
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.bias is None else logits + self.bias[words]

    def open(self, hidden: Tensor, log_cluster: Tensor, row: Tensor, cluster: Tensor) -> Iterator["Opened"]:
        """Opens clusters for rows, pair by pair, (P,) and (P,); yields each distinct cluster once."""
        order = cluster.argsort(stable=True)
        clusters, counts = cluster[order].unique_consecutive(return_counts=True)
        bounds = self.partition.offsets
        for c, pairs in zip(clusters.tolist(), order.split(counts.tolist()), strict=True):
            words = self.partition.words[bounds[c] : bounds[c + 1]]
            rows = row[pairs]
            yield Opened(pairs, words, self.logits_of(hidden[rows], words).log_softmax(1) + log_cluster[rows, c, None])


@dataclass(frozen=True)
class Opened:
    """One opened cluster."""

    pairs: Tensor  # (N,) which of the pairs asked for it
    words: Tensor  # (S,)
    log_prob: Tensor  # (N, S) log P(w|h)


def topk(words: Words, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable words, best first: log P(w|h) and the words, both (T, k).

    `hidden` (T, D), `log_cluster` (T, C).
    """
    n_rows, n_clusters = log_cluster.shape
    n_words = words.weight.shape[0]
    # On a GPU one large product is faster than a round trip to the host for every wave of clusters.
    if hidden.is_cuda or torch.compiler.is_compiling() or k > DENSE_SHARE * n_words or n_rows == 0:
        return _dense_topk(words, hidden, log_cluster, k)
    ranked, by_rank = log_cluster.sort(1, descending=True)  # (T, C)
    opened = words.partition.sizes[by_rank].cumsum(1)  # (T, C) words opened when the clusters up to this rank are
    values = torch.full((n_rows, k), -torch.inf, dtype=log_cluster.dtype, device=log_cluster.device)
    indices = torch.zeros((n_rows, k), dtype=torch.int64, device=log_cluster.device)
    active = torch.arange(n_rows, device=log_cluster.device)
    rank, width = 0, 1
    while rank < n_clusters:
        worst = values[active, -1]
        active = active[(worst < ranked[active, rank]) | (worst == -torch.inf)]
        if not active.numel():
            break
        too_far = opened[active, rank] > max(DENSE_SHARE * n_words, 2 * k)
        if rank >= FIRST_LOOK:
            # Clusters more probable than the k-th best word may hold a better one.
            in_question = (ranked[active] > values[active, -1:]).sum(1) - 1
            too_far |= opened[active].gather(1, in_question.clamp(min=0)[:, None]).squeeze(1) > n_words / 2
        if bool(too_far.any()):
            flat = active[too_far]
            values[flat], indices[flat] = _dense_topk(words, hidden[flat], log_cluster[flat], k)
            active = active[~too_far]
            if not active.numel():
                break
        width = min(width, n_clusters - rank)
        found_values, found_words = _open_wave(words, hidden, log_cluster, active, by_rank[:, rank : rank + width], k)
        best = torch.cat((values[active], found_values), 1).topk(k, 1)
        values[active] = best.values
        indices[active] = torch.cat((indices[active], found_words), 1).gather(1, best.indices)
        rank += width
        width = 1 if active.numel() <= FEW_ROWS else 2 * width
    return values, indices


def _open_wave(
    words: Words, hidden: Tensor, log_cluster: Tensor, active: Tensor, clusters: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The best of each row's next clusters (T, W): values and words, (active, W · min(k, S))."""
    width, per_cluster = clusters.shape[1], min(k, words.partition.capacity)
    row = active.repeat_interleave(width)
    values = torch.full((row.numel(), per_cluster), -torch.inf, dtype=log_cluster.dtype, device=hidden.device)
    found = torch.zeros((row.numel(), per_cluster), dtype=torch.int64, device=hidden.device)
    for part in words.open(hidden, log_cluster, row, clusters[active].reshape(-1)):
        best = part.log_prob.topk(min(per_cluster, part.words.numel()), 1)
        n = best.values.shape[1]
        values[part.pairs, :n] = best.values
        found[part.pairs, :n] = part.words[best.indices]
    shape = (active.numel(), width * per_cluster)
    return values.reshape(shape), found.reshape(shape)


def _dense_topk(words: Words, hidden: Tensor, log_cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if hidden.is_cuda or torch.compiler.is_compiling():
        values, indices = words.log_prob(hidden, log_cluster).topk(k, -1)
        return values, indices
    values, places = words.log_prob_in_order(hidden, log_cluster).topk(k, -1)
    return values, words.partition.words[places]


def sample(
    words: Words,
    hidden: Tensor,
    log_cluster: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One draw a row, (T,), exact: from P(w|h)^(1/temperature), cut to the top k, then to the nucleus of mass p."""
    if top_k is None and top_p is None and temperature == 1:
        return _sample_down(words, hidden, log_cluster, generator)
    if top_k is not None:
        values, candidates = topk(words, hidden, log_cluster, top_k)
    elif top_p is not None and temperature == 1:
        values, candidates = _nucleus(words, hidden, log_cluster, top_p)
    else:
        # Every word's share of the tempered mass depends on all the others.
        values, candidates = words.log_prob(hidden, log_cluster).sort(1, descending=True)
    if temperature == 0:
        return candidates[:, 0]
    # The nucleus of the untempered whole is cut against the whole; anything else against what is left.
    probability = (
        values.exp() if top_k is None and temperature == 1 else ((values - values[:, :1]) / temperature).softmax(1)
    )
    if top_p is not None:
        before = probability.cumsum(1) - probability
        probability = torch.where(before < top_p, probability, 0.0)
    drawn = torch.multinomial(probability, 1, generator=generator)
    return candidates.gather(1, drawn).squeeze(1)


def _sample_down(words: Words, hidden: Tensor, log_cluster: Tensor, generator: torch.Generator | None) -> Tensor:
    """A cluster from P(c|h), then a word from P(w|c, h): one cluster is opened a row."""
    cluster = torch.multinomial(log_cluster.exp(), 1, generator=generator).squeeze(1)  # (T,)
    drawn = torch.empty_like(cluster)
    row = torch.arange(cluster.numel(), device=cluster.device)
    for part in words.open(hidden, log_cluster, row, cluster):
        word = torch.multinomial(part.log_prob.softmax(1), 1, generator=generator).squeeze(1)
        drawn[part.pairs] = part.words[word]
    return drawn


def _nucleus(words: Words, hidden: Tensor, log_cluster: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Enough of the most probable words to hold a mass of p in every row."""
    n_words = words.weight.shape[0]
    k = min(64, n_words)
    while True:
        values, candidates = topk(words, hidden, log_cluster, k)
        if k == n_words or bool((values.exp().sum(1) >= top_p).all()):
            return values, candidates
        k = min(4 * k, n_words)
