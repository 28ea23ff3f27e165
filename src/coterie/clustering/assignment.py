"""The E-step: every word to its best cluster that still has room, frequent words first (the paper's Algorithm 1).

As a loop over words this would be slow. Because all clusters rank words the same way, by frequency, the loop's result
is also the stable matching found by deferred acceptance: in each round every unassigned word applies to its best
cluster, and every cluster keeps its most frequent applicants and rejects the others for good. Rounds run in parallel;
the result is exactly the loop's.

Shapes: V words, C clusters, B words in a block.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.clustering.partition import no_room

# At most so many scores are in memory at a time, those of a block of words; never all V × C.
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
    """Returns the cluster of each word, (V,).

    `score`: words (B,) → how well each cluster suits them, a new tensor (B, C). `counts` (V,) whole numbers. A cluster
    is closed once it holds `capacity` words or `budget` occurrences. `settled` (V,): the cluster of a word that must
    keep its own, C if it stands alone, else -1; settled words are assigned first. Of equally frequent words the one
    with the lower number goes first; of equally good clusters it takes the one with the lower number.
    """
    cluster_of = torch.full_like(counts, -1) if settled is None else settled.clone()
    placed = ((cluster_of >= 0) & (cluster_of < n_clusters)).nonzero().squeeze(1)
    size = torch.bincount(cluster_of[placed], minlength=n_clusters)  # (C,)
    mass = torch.zeros_like(size).index_add_(0, cluster_of[placed], counts[placed])  # (C,)
    order = counts.argsort(descending=True, stable=True)
    order = order[cluster_of[order] < 0]
    # Words of later blocks rank below all of this block's and can never displace them: blocks can be assigned in turn.
    for block in order.split(max(BLOCK_SCORES // n_clusters, 1)):
        # NaN and -inf are the worst scores, but an open cluster with one is still better than a closed cluster.
        wishes = score(block)
        wishes.nan_to_num_(nan=torch.finfo(wishes.dtype).min)
        choice = _play_rounds(wishes, counts[block], size, mass, capacity, budget)
        cluster_of[block] = choice
        size += torch.bincount(choice, minlength=n_clusters)
        mass.index_add_(0, choice, counts[block])
    return cluster_of


def _play_rounds(score: Tensor, count: Tensor, size: Tensor, mass: Tensor, capacity: int, budget: int) -> Tensor:
    """Returns the clusters of one block's words, (B,).

    `score` (B, C) and `count` (B,), words in descending rank; `size`, `mass` (C,): what the clusters already hold.
    """
    n_words, n_clusters = score.shape
    # A cluster that rejected a word rejects every word of lower rank, now and in later rounds, for its applicants only
    # become more. So one number per cluster suffices: cluster c is open to words whose rank is below cut[c].
    cut = torch.where((size < capacity) & (mass < budget), n_words, 0)  # (C,)
    choice = torch.empty(n_words, dtype=torch.int64, device=score.device)
    applying = torch.arange(n_words, device=score.device)  # words without a cluster
    while applying.numel():
        is_open = applying[:, None] < cut  # (applying, C)
        if not bool(is_open.any(1).all()):
            left = int((~is_open.any(1)).sum())
            raise no_room(left, n_clusters, capacity, budget)
        wish = torch.where(is_open, score if applying.numel() == n_words else score[applying], -torch.inf)
        choice[applying] = wish.argmax(1)
        # A stable sort keeps the applicants of a cluster in rank order.
        by_cluster = choice.argsort(stable=True)  # (B,)
        chosen = choice[by_cluster]
        per_cluster = torch.bincount(chosen, minlength=n_clusters)
        first = per_cluster.cumsum(0) - per_cluster  # (C,) where each cluster's applicants begin
        before = torch.arange(n_words, device=score.device) - first[chosen] + size[chosen]
        sums = count[by_cluster].cumsum(0) - count[by_cluster]  # (B,) occurrences of all applicants before
        mass_before = sums - sums[first.clamp(max=n_words - 1)][chosen] + mass[chosen]
        rejected = (before >= capacity) | (mass_before >= budget)
        applying = by_cluster[rejected].sort().values
        cut.scatter_reduce_(0, chosen[rejected], by_cluster[rejected], "amin")
    return choice
