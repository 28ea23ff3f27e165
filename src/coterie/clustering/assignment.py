"""The E-step: every word to its best cluster that still has room, frequent words first (the paper's Algorithm 1).

Written as a loop over words it would be slow. Because all clusters rank words the same way, by frequency, the loop's
outcome is also the stable matching of a game played in rounds: every word asks its best cluster, every cluster keeps
its most frequent callers and turns the others away for good. Rounds are parallel; the outcome is the loop's, exactly.

Shapes: V words, C clusters, B words in a block.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.clustering.partition import no_room

# Scores of a block of words are held at once, never all V × C: this many at most.
BLOCK_SCORES = 1 << 25


@torch.no_grad()
def assign(
    score: Callable[[Tensor], Tensor],
    counts: Tensor,
    n_clusters: int,
    capacity: int,
    budget: int,
    settled: Tensor | None = None,
) -> Tensor:
    """The cluster of each word, (V,).

    `score`: words (B,) → how well each cluster suits them, a new tensor (B, C). `counts` (V,) whole numbers. A cluster
    is closed once it holds `capacity` words or `budget` occurrences. `settled` (V,): a word's cluster if it is to keep
    its place, else -1; settled words are seated first. Ties in frequency go to the lower word, in score to the lower
    cluster.
    """
    cluster_of = torch.full_like(counts, -1) if settled is None else settled.clone()
    seated = (cluster_of >= 0).nonzero().squeeze(1)
    size = torch.bincount(cluster_of[seated], minlength=n_clusters)  # (C,)
    mass = torch.zeros_like(size).index_add_(0, cluster_of[seated], counts[seated])  # (C,)
    order = counts.argsort(descending=True, stable=True)
    order = order[cluster_of[order] < 0]
    # Words of later blocks come after all of this block's in rank, so they can never take a place from it: blocks are
    # settled one after the other.
    for block in order.split(max(BLOCK_SCORES // n_clusters, 1)):
        # NaN and -inf are no wish at all, yet better than a closed cluster.
        wishes = score(block)
        wishes.nan_to_num_(nan=torch.finfo(wishes.dtype).min)
        choice = _play_rounds(wishes, counts[block], size, mass, capacity, budget)
        cluster_of[block] = choice
        size += torch.bincount(choice, minlength=n_clusters)
        mass.index_add_(0, choice, counts[block])
    return cluster_of


def _play_rounds(score: Tensor, count: Tensor, size: Tensor, mass: Tensor, capacity: int, budget: int) -> Tensor:
    """The outcome for one block, (B,).

    `score` (B, C) and `count` (B,), words in descending rank; `size`, `mass` (C,): what the clusters already hold.
    """
    n_words, n_clusters = score.shape
    # A cluster that turned a word away turns away every word after it, now and in every later round: its callers only
    # grow in number. So one cut per cluster says it all: cluster c is open to the words whose rank is below cut[c].
    cut = torch.where((size < capacity) & (mass < budget), n_words, 0)  # (C,)
    choice = torch.empty(n_words, dtype=torch.int64, device=score.device)
    asking = torch.arange(n_words, device=score.device)  # those who must ask (again)
    while asking.numel():
        is_open = asking[:, None] < cut  # (asking, C)
        if not bool(is_open.any(1).all()):
            left = int((~is_open.any(1)).sum())
            raise no_room(left, n_clusters, capacity, budget)
        wish = torch.where(is_open, score if asking.numel() == n_words else score[asking], -torch.inf)
        choice[asking] = wish.argmax(1)
        # Stable: inside a cluster the callers stay in rank order.
        by_cluster = choice.argsort(stable=True)  # (B,)
        callers = choice[by_cluster]
        per_cluster = torch.bincount(callers, minlength=n_clusters)
        first = per_cluster.cumsum(0) - per_cluster  # (C,) where each cluster's callers begin
        before = torch.arange(n_words, device=score.device) - first[callers] + size[callers]
        sums = count[by_cluster].cumsum(0) - count[by_cluster]  # (B,) occurrences of all callers before
        mass_before = sums - sums[first.clamp(max=n_words - 1)][callers] + mass[callers]
        turned_away = (before >= capacity) | (mass_before >= budget)
        asking = by_cluster[turned_away].sort().values
        cut.scatter_reduce_(0, callers[turned_away], by_cluster[turned_away], "amin")
    return choice
