"""What a trained layer's clusters look like: similar words inside one, runner-up clusters, a cluster's typical words.

Words that stand alone have no cluster, and therefore none of these.

Shapes: V words, D width, C clusters, B words, S words of a cluster.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering.assignment import BLOCK_SCORES
from coterie.clustering.partition import Partition
from coterie.loss.levels import cluster_vectors
from coterie.softmax import SelfOrganizedSoftmax


def mass(partition: Partition, counts: Tensor) -> Tensor:
    """The occurrences of each cluster's words, (C,), on the CPU; `counts` (V,)."""
    found = torch.zeros(partition.n_clusters + 1, dtype=torch.int64)
    return found.index_add_(0, partition.cluster_of.cpu(), counts.cpu())[:-1]  # the last are of words that stand alone


@torch.no_grad()
def nearest(head: SelfOrganizedSoftmax, cluster: int, n: int) -> Tensor:
    """For each word of a cluster, the n other words with the most similar vectors (cosine), most similar first.

    Returns indices into `partition.members(cluster)`, (S, n), or (S, S - 1) in a small cluster."""
    vectors = F.normalize(head.vectors().weight[head.partition.members(cluster)].float(), dim=-1)  # (S, D)
    size = vectors.shape[0]
    found = []
    for rows in torch.arange(size, device=vectors.device).split(max(1, BLOCK_SCORES // max(size, 1))):
        alike = vectors[rows] @ vectors.T
        alike[torch.arange(rows.numel()), rows] = -torch.inf  # a word is not its own neighbour
        found.append(alike.topk(min(n, size - 1), dim=1).indices)
    return torch.cat(found) if found else torch.zeros(0, 0, dtype=torch.int64)


@torch.no_grad()
def next_best(head: SelfOrganizedSoftmax, words: Tensor, n: int) -> Tensor:
    """The clusters that suit words best after their own, (B,) → (B, n), best first; -1 where there is none.

    There is none for a layer with a fixed partition, which keeps no statistic, nor for a word that was never seen or
    that stands alone."""
    statistic = head.statistic
    n_found = min(n, head.n_clusters - 1)
    found = words.new_full((words.numel(), n), -1)
    cluster_of = head.partition.cluster_of
    if statistic is None or n_found == 0:
        return found
    scores = head.scores()
    block = max(1, BLOCK_SCORES // head.n_clusters)
    for start in range(0, words.numel(), block):
        part = words[start : start + block]
        wish = scores(part)  # (block, C)
        wish[:, head.partition.sizes == 0] = -torch.inf
        alone = cluster_of[part] == head.n_clusters
        wish.scatter_(1, cluster_of[part, None].clamp(max=head.n_clusters - 1), -torch.inf)
        wish[alone | ~statistic.seen[part]] = -torch.inf
        value, cluster = wish.topk(n_found, dim=1)
        found[start : start + block, :n_found] = torch.where(value > -torch.inf, cluster, -1)
    return found


@torch.no_grad()
def typicality(head: SelfOrganizedSoftmax, counts: Tensor) -> Tensor:
    """How typical each word is of its cluster, (V,): its count × P(its cluster | its contexts).

    Frequent words that fit make good names for a cluster. `counts` (V,). Without a statistic: the count itself. 0 for a
    word that stands alone."""
    cluster_of = head.partition.cluster_of
    counts = counts.to(head.weight.device).double() * (cluster_of < head.n_clusters)
    if head.statistic is None:
        return counts
    clusters = cluster_vectors(head.vectors())
    words = torch.arange(head.n_classes, device=counts.device)
    expected = torch.zeros_like(counts)
    for part in words.split(max(1, BLOCK_SCORES // head.n_clusters)):
        log_prob = head.statistic.logits(part, *clusters).log_softmax(1)
        own = log_prob.gather(1, cluster_of[part, None].clamp(max=head.n_clusters - 1)).squeeze(1)
        expected[part] = own.double().exp()
    return counts * torch.where(head.statistic.seen, expected, 0.0)
