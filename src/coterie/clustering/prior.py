"""What is known of words and clusters before anything is learned: how often they occur.

A layer whose biases start from the counts starts as good as counting, not as good as guessing. And a cluster that loses
or gains words is at once expected as much less or more: else every reorganisation would have to be learned anew, which
cost hundreds of updates each time.

Shapes: V words, C clusters.
"""

import torch
from torch import Tensor

from coterie.buffers import ExactBuffers


class Prior(ExactBuffers):
    """What the clusters begin with, beside what is learned of them; it moves with their words.

    A buffer, no parameter: no optimizer remembers anything of it, and processes that share buffers share it.
    """

    shift: Tensor  # (C,) in float32 whatever the layer's dtype: small steps would add up to errors

    def __init__(self, n_clusters: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(n_clusters, dtype=torch.float32, device=device))

    @torch.no_grad()
    def start(self, counts: Tensor, cluster_of: Tensor) -> None:
        """As the counts (V,) are, for the clusters of the words (V,)."""
        self.shift.copy_(log_mass(counts, cluster_of, self.shift.numel()))

    @torch.no_grad()
    def move(self, counts: Tensor, before: Tensor, after: Tensor) -> None:
        """Words (V,) went from their clusters `before` to those `after`, both (V,)."""
        n = self.shift.numel()
        self.shift += log_mass(counts, after, n) - log_mass(counts, before, n)


def log_frequency(counts: Tensor) -> Tensor:
    """Where the words' biases start, (V,) → (V,) float32: inside a cluster P(w|c) is as the words' counts are.

    Only differences matter; the mean over the text is 0, so that the words that occur most are nearest to zero, where
    half precision is finest.
    """
    seen = counts.double() + 1  # a word that was never seen may come all the same
    logs = seen.log()
    return (logs - (seen * logs).sum() / seen.sum()).float()


def log_mass(counts: Tensor, cluster_of: Tensor, n_clusters: int) -> Tensor:
    """What each cluster's words make up together, (V,), (V,) → (C,) float32: 0 where it is one part in C."""
    mass = torch.ones(n_clusters, dtype=torch.int64, device=counts.device).index_add_(0, cluster_of, counts)
    return (mass.double() * n_clusters / mass.sum()).log().float()
