"""What the layer says of itself: perplexities as it goes, and what a reorganisation moved.

Shapes: T tokens.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.buffers import ExactBuffers


@dataclass(frozen=True)
class Measures:
    """Perplexity and its two factors (the paper's equations 5 and 6) over a number of tokens."""

    perplexity: float
    cluster_perplexity: float
    in_cluster_perplexity: float
    tokens: int


@dataclass(frozen=True)
class Reorganization:
    """What one E-step changed (the paper's Figure 1)."""

    words_moved: int
    share_of_words: float
    share_of_mass: float
    empty_clusters: int


class Meter(ExactBuffers):
    """Sums log P(c|h) and log P(w|c, h) on the device, apart for training and evaluation."""

    sums: Tensor  # (2, 3): evaluation and training; log P(c), log P(w|c), tokens

    def __init__(self, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(2, 3, dtype=torch.float64, device=device), persistent=False)

    @torch.no_grad()
    def add(self, log_cluster: Tensor, log_word: Tensor, n_used: Tensor) -> None:
        """Counts a batch: (T,) and (T,), 0 for tokens left out; `n_used`: how many are not."""
        batch = torch.stack((log_cluster, log_word)).sum(1)  # (2,)
        self.sums[int(self.training)] += torch.cat((batch, n_used[None]))

    def read(self, reset: bool = True) -> Measures:
        """The measures of the current mode since the last reset; waits for the device."""
        cluster, word, tokens = self.sums[int(self.training)].tolist()
        if reset:
            self.sums[int(self.training)] = 0
        if tokens == 0:
            return Measures(math.nan, math.nan, math.nan, 0)
        return Measures(
            perplexity=_exp(-(cluster + word) / tokens),
            cluster_perplexity=_exp(-cluster / tokens),
            in_cluster_perplexity=_exp(-word / tokens),
            tokens=int(tokens),
        )


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
