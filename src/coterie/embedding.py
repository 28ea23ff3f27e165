"""The input side of tied weights: rows of a matrix by index, and a word's vector plus its cluster's.

Shapes: V words, C clusters, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering.partition import Partition
from coterie.loss.dispatch import HAS_TRITON


def look_up(weight: Tensor, words: Tensor) -> Tensor:
    """Rows of a matrix, (V, D), (...) → (..., D), as `F.embedding`.

    On a GPU a kernel computes the gradient: several times as fast, and the same in every run. Under autocast the rows
    come in its dtype.
    """
    if not (HAS_TRITON and weight.is_cuda) or weight.dtype == torch.float64 or torch.compiler.is_compiling():
        return F.embedding(words, weight)
    from coterie.kernels import embedding  # imported here, because a CPU has no need of triton

    return embedding.lookup(weight, words)


def embed(weight: Tensor, cluster_weight: Tensor, partition: Partition, words: Tensor) -> Tensor:
    """The vectors of words, of `weight` (V, D), plus their clusters', of `cluster_weight` (C, D): (...) → (..., D)."""
    cluster, n_clusters = partition.cluster_of[words], partition.n_clusters
    alone = cluster == n_clusters
    # A word that stands alone takes some vector, which is masked. Not the same for all: on a GPU the gradients of a
    # vector are added up one after the other, and most of a text is such words.
    of_cluster = look_up(cluster_weight, torch.where(alone, words % n_clusters, cluster))
    return look_up(weight, words) + of_cluster.masked_fill(alone[..., None], 0.0)
