"""Biases from counts: initial values for words, and a prior for clusters that changes when words move.

With biases initialised from the counts, training starts from unigram frequencies rather than from a uniform guess. When
a cluster loses or gains words, its prior changes at once; otherwise the cluster biases would have to learn the change,
which took hundreds of updates after every reorganisation.

Shapes: V words, C clusters.
"""

import torch
from torch import Tensor

from coterie.buffers import ExactBuffers


class Prior(ExactBuffers):
    """The part of the cluster biases that follows from the counts of the clusters' words.

    It is a buffer, not a parameter, so that no optimizer keeps a state for it and DDP broadcasts it.
    """

    shift: Tensor  # (C,) float32 whatever the layer's dtype, so that rounding errors of moves do not add up

    def __init__(self, n_clusters: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(n_clusters, dtype=torch.float32, device=device))

    @torch.no_grad()
    def start(self, counts: Tensor, cluster_of: Tensor) -> None:
        """Initialises the prior from the counts (V,) and the clusters (V,) of the words."""
        self.shift.copy_(log_mass(counts, cluster_of, self.shift.numel()))

    @torch.no_grad()
    def move(self, counts: Tensor, before: Tensor, after: Tensor) -> None:
        """Updates the prior after words moved from their clusters `before` to those `after`, both (V,)."""
        n = self.shift.numel()
        self.shift += log_mass(counts, after, n) - log_mass(counts, before, n)


def log_frequency(counts: Tensor) -> Tensor:
    """Initial biases of the words, (V,) → (V,) float32: P(w|c) is then proportional to the words' counts.

    Only differences matter. The mean over the text is set to 0, which keeps the most frequent words near zero, where
    half precision is finest.
    """
    seen = counts.double() + 1  # words that were never seen must stay possible
    logs = seen.log()
    return (logs - (seen * logs).sum() / seen.sum()).float()


def log_mass(counts: Tensor, cluster_of: Tensor, n_clusters: int) -> Tensor:
    """log of each cluster's share of all occurrences, times C: (V,), (V,) → (C,) float32.

    Words that stand alone (cluster C) are part of no cluster.
    """
    mass = torch.ones(n_clusters + 1, dtype=torch.int64, device=counts.device).index_add_(0, cluster_of, counts)
    return _times_clusters(mass[:-1], counts, cluster_of, n_clusters)


def log_mass_alone(counts: Tensor, cluster_of: Tensor, n_clusters: int) -> Tensor:
    """The same for each word as if it stood alone, (V,): initial biases that compete with those of the clusters."""
    return _times_clusters(counts + 1, counts, cluster_of, n_clusters)


def _times_clusters(mass: Tensor, counts: Tensor, cluster_of: Tensor, n_clusters: int) -> Tensor:
    # Every column of the root counts as having occurred once more, or one never seen would be impossible.
    total = counts.sum() + n_clusters + (cluster_of == n_clusters).sum()
    return (mass.double() * n_clusters / total).log().float()
