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

    def row(self) -> Tensor:
        """(3,) the sums of the current mode."""
        return self.sums[int(self.training)]

    def read(self, reset: bool = True) -> Measures:
        """The measures of the current mode since the last reset; waits for the device."""
        cluster, word, tokens = self.row().tolist()
        if reset:
            self.row().zero_()
        if tokens == 0:
            return Measures(math.nan, math.nan, math.nan, 0)
        return Measures(
            perplexity=perplexity(-(cluster + word) / tokens),
            cluster_perplexity=perplexity(-cluster / tokens),
            in_cluster_perplexity=perplexity(-word / tokens),
            tokens=int(tokens),
        )


def perplexity(loss: float) -> float:
    """e to the loss, and no more than a number can be: there is no infinity in JSON."""
    return math.exp(min(loss, 700.0))


def summarize(
    log_cluster: Tensor, log_word: Tensor, n_used: Tensor, sums: Tensor, tally: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log P of a batch's targets (T,), its mean loss (), and whether its numbers are finite (); adds the batch to
    measures and tally.

    `log_cluster`, `log_word` (T,), 0 for tokens left out; `n_used` () tokens are not; `sums` (3,) as in `Meter`,
    `tally` (4,) as in `Faults`.
    A hidden vector that is not finite makes its log-probabilities so: looking at these is enough.
    """
    cluster, word = log_cluster.sum(), log_word.sum()
    with torch.no_grad():
        sound = torch.isfinite(cluster + word)
        sums += torch.where(sound, torch.stack((cluster, word, n_used)), 0.0)
        tally[2:] += torch.stack((~sound, torch.ones_like(sound)))
    # A batch with nothing to predict has loss 0, not 0/0.
    return log_cluster + log_word, -(cluster + word) / n_used.clamp(min=1), sound
