"""The two-level loss, written so that one look tells it is right: O(T · V).

Shapes: T tokens, D width, V words, C clusters.
"""

import torch
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.loss.grouping import Grouping
from coterie.loss.levels import LogProbs, cluster_level, cluster_logits, split


def two_level(
    hidden: Tensor,
    word_hidden: Tensor | None,
    cluster_weight: Tensor,
    cluster_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    partition: Partition,
    grouping: Grouping,
) -> LogProbs:
    """log P(c|h) and log P(w|c, h) of every target.

    What each level sees: `hidden` (T, D) and `word_hidden` (T, D), or without the second both side by side (T, 2D), or
    one vector (T, D) for both. `cluster_weight` (C, D), `cluster_bias` (C,), `weight` (V, D), `bias` (V,); `target`
    (T,), -1 for a token to leave out.
    """
    cluster_hidden, word_hidden = split(hidden, word_hidden, weight.shape[1])
    logits = word_hidden @ weight.to(word_hidden.dtype).T  # (T, V)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
    word = target.clamp(min=0)
    cluster_of = partition.cluster_of  # (V,)
    together = cluster_of == cluster_of[word][:, None]  # (T, V): in the target's cluster
    log_total = logits.masked_fill(~together, -torch.inf).logsumexp(1)  # (T,)
    own = logits.gather(1, word[:, None]).squeeze(1) - log_total
    mean = torch.where(together, logits, 0.0).sum(1) / together.sum(1) - log_total
    cluster, mean_cluster = cluster_level(
        cluster_logits(cluster_hidden, cluster_weight, cluster_bias), target, partition
    )
    used = target >= 0
    return LogProbs(cluster, torch.where(used, own, 0.0), mean_cluster, torch.where(used, mean, 0.0))
