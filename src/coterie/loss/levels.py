"""What every backend returns, and the cluster level with ordinary PyTorch operations.

Shapes: T tokens, D width, C clusters.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering.partition import Partition


class LogProbs(NamedTuple):
    """Both levels, for every token; a token left out has 0 everywhere. All (T,)."""

    cluster: Tensor  # log P(c|h) of the target's cluster
    word: Tensor  # log P(w|c, h) of the target
    mean_cluster: Tensor  # the mean of log P(c|h) over the clusters that have words
    mean_word: Tensor  # the mean of log P(w|c, h) over the words of the target's cluster


def in_autocast(hidden: Tensor) -> Tensor:
    """The hidden vectors in autocast's dtype where it is on: operators of our own are not cast by themselves."""
    device = hidden.device.type
    if hidden.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return hidden
    return hidden.to(torch.get_autocast_dtype(device))


def refuse_second_derivatives() -> None:
    """Raises in a backward that is itself to be differentiated: gradients that were computed by hand are constants."""
    if torch.is_grad_enabled():
        raise RuntimeError('second derivatives (create_graph=True) need backend="reference"')


def split(hidden: Tensor, word_hidden: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """What each level sees, (T, D) both: `hidden` (T, D) and `word_hidden` (T, D), or, without the second, both side by
    side (T, 2D), or one vector (T, D) for both."""
    if word_hidden is not None:
        return hidden, word_hidden
    if hidden.shape[1] == width:
        return hidden, hidden
    # Not two slices: the gradient of each would be as large as `hidden`, nearly all zeros, and the two be added.
    cluster_hidden, word_hidden = hidden.split(width, 1)
    return cluster_hidden, word_hidden


def cluster_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(T, D), (C, D), (C,) → (T, C), in float32 at least."""
    logits = F.linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def cluster_log_softmax(logits: Tensor, partition: Partition) -> Tensor:
    """log P(c|h), -inf for empty clusters: (T, C) → (T, C).

    An empty cluster has no word to give its mass to: left in, the words' probabilities would not sum to one.
    """
    return logits.masked_fill(partition.sizes == 0, -torch.inf).log_softmax(-1)


def cluster_level(logits: Tensor, target: Tensor, partition: Partition) -> tuple[Tensor, Tensor]:
    """log P(c|h) of the target's cluster and its mean over the filled clusters: (T, C), (T,) → (T,), (T,)."""
    log_clusters = cluster_log_softmax(logits, partition)
    cluster = partition.cluster_of[target.clamp(min=0)]
    filled = partition.sizes > 0
    mean = torch.where(filled, log_clusters, 0.0).sum(1) / filled.sum()
    own = log_clusters.gather(1, cluster[:, None]).squeeze(1)
    return torch.where(target >= 0, own, 0.0), torch.where(target >= 0, mean, 0.0)
