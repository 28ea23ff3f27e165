"""An embedding whose gradient is summed in the same order every time, and to which cluster vectors can be added.

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
        # In a tuple, so that it is no submodule: its parameters are the model's already.
        self._head: tuple[SelfOrganizedSoftmax] | None = None

    def forward(self, words: Tensor) -> Tensor:
        """(...) → (..., D)."""
        vectors = look_up(self.weight, words)
        if self._head is None:
            return vectors
        (head,) = self._head
        return vectors + look_up(head.cluster_weight, head.partition.cluster_of[words])

    def add_clusters(self, head: SelfOrganizedSoftmax) -> None:
        """A word goes in as its own vector plus that of its cluster in this head, whichever the model has later."""
        self._head = (head,)


def look_up(weight: Tensor, words: Tensor) -> Tensor:
    """Rows of a matrix: (V, D), (...) → (..., D)."""
    if not (HAS_TRITON and weight.is_cuda):
        return F.embedding(words, weight)
    from coterie_lab.kernels import embedding

    return embedding.lookup(weight, words)
