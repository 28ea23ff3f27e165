"""An embedding with a deterministic gradient, which can add cluster vectors.

Shapes: V words, C clusters, D width.
"""

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
        return vectors + look_up(head.cluster_weight, head.partition.cluster_of[words])

    def add_clusters(self, head: SelfOrganizedSoftmax) -> None:
        """From now on, adds to each word's vector that of its current cluster in this head."""
        self._head = (head,)


def look_up(weight: Tensor, words: Tensor) -> Tensor:
    """Gathers rows of a matrix: (V, D), (...) → (..., D)."""
    if not (HAS_TRITON and weight.is_cuda):
        return F.embedding(words, weight)
    from coterie_lab.kernels import embedding

    return embedding.lookup(weight, words)
