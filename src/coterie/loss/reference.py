"""The in-cluster log-probability, written so that one look tells it is right: O(T · V).

Shapes: T tokens, D width, V words.
"""

import torch
from torch import Tensor

from coterie.partition import Partition


def in_cluster(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, partition: Partition
) -> tuple[Tensor, Tensor]:
    """log P(target | its cluster), and the mean of log P over the words of that cluster: both (T,).

    `hidden` (T, D), `weight` (V, D), `bias` (V,), `target` (T,); a target of -1 gets 0.
    """
    used = target >= 0
    target = target.clamp(min=0)
    logits = hidden @ weight.to(hidden.dtype).T  # (T, V)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
    cluster_of = partition.cluster_of  # (V,)
    together = cluster_of == cluster_of[target][:, None]  # (T, V): in the target's cluster
    log_total = logits.masked_fill(~together, -torch.inf).logsumexp(1)  # (T,)
    log_prob = logits.gather(1, target[:, None]).squeeze(1) - log_total
    mean = torch.where(together, logits, 0.0).sum(1) / together.sum(1) - log_total
    return torch.where(used, log_prob, 0.0), torch.where(used, mean, 0.0)
