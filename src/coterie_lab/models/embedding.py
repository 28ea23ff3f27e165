"""An embedding with a deterministic gradient, which can add cluster vectors.

Shapes: V words, C clusters, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.loss.dispatch import HAS_TRITON
from coterie.softmax import SelfOrganizedSoftmax


class Embedding(nn.Embedding):
    """`nn.Embedding`, to which a head's cluster vectors can be added; on a GPU a kernel of ours computes its gradient,
    several times as fast, and under autocast the vectors come in its dtype."""

    def __init__(self, n_words: int, width: int) -> None:
        super().__init__(n_words, width)
        # In a tuple, so that the head does not become a submodule: it is one of the model already.
        self._head: tuple[SelfOrganizedSoftmax] | None = None

    def forward(self, words: Tensor) -> Tensor:
        """(...) → (..., D)."""
        vectors = look_up(self.weight, words)
        if self._head is None:
            return vectors
        (head,) = self._head
        cluster = head.partition.cluster_of[words]
        alone = cluster == head.n_clusters
        # A word that stands alone takes some vector, which is masked. Not the same for all: on a GPU the gradients of a
        # vector are added up one after the other, and most of a text is such words.
        of_cluster = look_up(head.cluster_weight, torch.where(alone, words % head.n_clusters, cluster))
        return vectors + of_cluster.masked_fill(alone[..., None], 0.0)

    def add_clusters(self, head: SelfOrganizedSoftmax) -> None:
        """From now on, does what `head.embed` does: adds to each word's vector that of its cluster, if it has one."""
        self._head = (head,)


def look_up(weight: Tensor, words: Tensor) -> Tensor:
    """Gathers rows of a matrix: (V, D), (...) → (..., D)."""
    if not (HAS_TRITON and weight.is_cuda):
        return F.embedding(words, weight)
    from coterie_lab.kernels import embedding

    return embedding.lookup(weight, words)
