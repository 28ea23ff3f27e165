"""What is known of words and clusters before anything is learned: how often they occur.

A layer whose biases start from the counts starts as good as counting, not as good as guessing. And a cluster that loses
or gains words is at once expected as much less or more: else every reorganisation would have to be learned anew, which
cost hundreds of updates each time.

Shapes: V words, C clusters.
"""

import torch
from torch import Tensor


def log_frequency(counts: Tensor) -> Tensor:
    """Where the words' biases start, (V,) → (V,) float32: inside a cluster P(w|c) is as the words' counts are.

    Only differences matter; the mean over the text is 0, so that the words that occur most are exact in half precision.
    """
    seen = counts.double() + 1  # a word that was never seen may come all the same
    logs = seen.log()
    return (logs - (seen * logs).sum() / seen.sum()).float()


def log_mass(counts: Tensor, cluster_of: Tensor, n_clusters: int) -> Tensor:
    """What each cluster's words make up together, (V,), (V,) → (C,) float32: 0 where it is one part in C."""
    mass = torch.ones(n_clusters, dtype=torch.int64, device=counts.device).index_add_(0, cluster_of, counts)
    return (mass.double() * n_clusters / mass.sum()).log().float()
