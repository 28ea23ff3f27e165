"""An embedding whose gradient is summed in the same order every time, and to which cluster vectors can be added.

Shapes: V words, C clusters, D width.
"""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from coterie.clustering.partition import Partition
from coterie.loss.dispatch import HAS_TRITON


class Clustered(Protocol):
    """A head with clusters, as far as an embedding needs to know it."""

    cluster_weight: nn.Parameter  # (C, D)
    partition: Partition


class Embedding(nn.Embedding):
    """`nn.Embedding`, to which a head's cluster vectors can be added; on a GPU a kernel of ours computes its gradient,
    several times as fast, and under autocast the vectors come in its dtype."""

    def __init__(self, n_words: int, width: int) -> None:
        super().__init__(n_words, width)
        self._head: tuple[Clustered] | None = None  # not a module of its own: its parameters are counted elsewhere

    def forward(self, words: Tensor) -> Tensor:
        """(...) → (..., D)."""
        vectors = look_up(self.weight, words)
        if self._head is None:
            return vectors
        (head,) = self._head
        return vectors + look_up(head.cluster_weight, head.partition.cluster_of[words])

    def add_clusters(self, head: Clustered) -> None:
        """A word goes in as its own vector plus that of its cluster in this head, whichever the model has later."""
        self._head = (head,)


def look_up(weight: Tensor, words: Tensor) -> Tensor:
    """Rows of a matrix: (V, D), (...) → (..., D)."""
    if not (HAS_TRITON and weight.is_cuda):
        return F.embedding(words, weight)
    from coterie_lab.kernels import embedding

    return embedding.lookup(weight, words)
