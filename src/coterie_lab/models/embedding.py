"""An embedding with a fast gradient, which a tied head replaces by its own.

Shapes: V words, D width.
"""

from torch import Tensor, nn

from coterie.embedding import look_up
from coterie.softmax import SelfOrganizedSoftmax


class Embedding(nn.Embedding):
    """`nn.Embedding`, with the gradient of `coterie.embedding.look_up`; tied to a head with clusters, its `embed`."""

    def __init__(self, n_words: int, width: int) -> None:
        super().__init__(n_words, width)
        # In a tuple, so that the head does not become a submodule: it is one of the model already.
        self._head: tuple[SelfOrganizedSoftmax] | None = None

    def forward(self, words: Tensor) -> Tensor:
        """(...) → (..., D)."""
        return look_up(self.weight, words) if self._head is None else self._head[0].embed(words)

    def use(self, head: SelfOrganizedSoftmax) -> None:
        """From now on, a word goes in as the head embeds it."""
        self._head = (head,)
