"""The two-level loss in its most obvious form, O(T · V), to check the others against.

Shapes: T tokens, D width, V words, C clusters.
"""

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.loss.grouping import Grouping
from coterie.loss.levels import LogProbs, Vectors, cluster_logits, project, root_level


def two_level(hidden: Tensor, vectors: Vectors, partition: Partition, grouping: Grouping) -> tuple[LogProbs, Tensor]:
    """log P(c|h) and log P(w|c, h) of every target, and h_c (T, D)."""
    cluster_hidden, word_hidden = project(hidden, vectors)
    target = grouping.word  # (T,) -1: ignored
    word = target.clamp(min=0)
    cluster_of = partition.cluster_of  # (V,)

    logits = word_hidden @ vectors.weight.to(word_hidden.dtype).T  # (T, V)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if vectors.bias is not None:
        logits = logits + vectors.bias
    alone = cluster_of[word] == partition.n_clusters  # (T,)
    together = (cluster_of == cluster_of[word][:, None]) & ~alone[:, None]  # (T, V): in the target's cluster
    together = together | (torch.arange(partition.n_words, device=word.device) == word[:, None])  # one word is alone
    log_total = logits.masked_fill(~together, -torch.inf).logsumexp(1)  # (T,)
    own = logits.gather(1, word[:, None]).squeeze(1) - log_total
    mean = torch.where(together, logits, 0.0).sum(1) / together.sum(1) - log_total

    weight = torch.cat((vectors.cluster_weight, vectors.weight[partition.slots]))  # (C + N, D)
    bias = vectors.cluster_shift()
    if bias is not None and vectors.bias is not None:
        bias = torch.cat((bias, vectors.bias[partition.slots]))
    cluster, mean_cluster = root_level(cluster_logits(cluster_hidden, weight, bias), target, partition)
    used = target >= 0
    return LogProbs(cluster, torch.where(used, own, 0.0), mean_cluster, torch.where(used, mean, 0.0)), cluster_hidden
