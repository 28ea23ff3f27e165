"""Proposal distributions of sampled losses: one set of samples per batch, in static shapes.

The tables are integers, so that a head in another precision draws the same words.

Shapes: T tokens, K draws, V words, P different pairs of neighbours.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.checks import check_counts
from coterie_lab.heads.cooccurrence import neighbours

Kind = Literal["unigram", "power", "bigram"]
POWER = 0.75
UNIGRAM_SHARE = 0.5  # of the interpolated proposal
SCALE = 1 << 40  # of a distribution kept in whole numbers


class Draw(NamedTuple):
    """The samples of a batch with their probabilities."""

    words: Tensor  # (K,)
    log_q: Tensor  # (K,) of the words drawn, float64
    target_log_q: Tensor  # (T,) of the targets


class Proposal(nn.Module):
    """Draws words by their frequency, by its power 3/4, or by frequency and what follows the words of the batch."""

    weight: Tensor  # (V,) whole numbers
    context: Tensor  # (P,) first words of the pairs, which are sorted by the second
    count: Tensor  # (P,)
    ends: Tensor  # (V,) where the pairs of each second word end
    followed: Tensor  # (V,) how often each word is a first one

    def __init__(
        self, kind: Kind, counts: Tensor | Sequence[int], n_classes: int, text: NDArray[Any] | None = None
    ) -> None:
        """`counts` (V,); `text`: the training text, for the kind "bigram" alone."""
        super().__init__()
        if kind not in ("unigram", "power", "bigram"):
            raise ValueError(f"proposal must be 'unigram', 'power' or 'bigram'; got {kind!r}")
        self.kind = kind
        frequency = check_counts(counts, n_classes).clamp(min=1).double() ** (POWER if kind == "power" else 1.0)
        weight = (frequency / frequency.sum() * SCALE).round().clamp(min=1).long()
        self.register_buffer("weight", weight, persistent=False)
        if kind == "bigram":
            if text is None:
                raise ValueError("the bigram proposal needs the training text: give text=, the numbers of its words")
            pairs = neighbours(text, n_classes)
            occurs = torch.bincount(pairs.second, minlength=n_classes)
            followed = torch.zeros(n_classes, dtype=torch.int64).index_add_(0, pairs.first, pairs.count)
            tables = {"context": pairs.first, "count": pairs.count, "ends": occurs.cumsum(0), "followed": followed}
            for name, table in tables.items():
                self.register_buffer(name, table, persistent=False)

    @torch.no_grad()
    def forward(self, target: Tensor, used: Tensor, n: int) -> Draw:
        """Draws K = `n` words, with replacement; `target` (T,) are word numbers, `used` (T,) which of them count."""
        q = self.distribution(target, used)
        up_to = q.cumsum(0)  # (V,)
        draws = torch.rand(n, dtype=torch.float64, device=q.device) * up_to[-1]
        words = torch.searchsorted(up_to, draws, right=True).clamp(max=q.numel() - 1)
        log_q = q.log()
        return Draw(words, log_q[words], log_q[target])

    def distribution(self, target: Tensor, used: Tensor) -> Tensor:
        """How likely each word is to be drawn for a batch, (V,) float64."""
        unigram = self.weight.double() / self.weight.sum()
        if self.kind != "bigram":
            return unigram
        # In a text each target is the context of the next, so the batch's targets are also its contexts.
        seen = torch.zeros_like(unigram).index_add_(0, target, used.double())
        share = seen / (used.sum().clamp(min=1) * self.followed.clamp(min=1))  # (V,) for each time it is followed
        up_to = nn.functional.pad((share[self.context] * self.count).cumsum(0), (1, 0))  # (P + 1,)
        following = up_to[self.ends] - up_to[nn.functional.pad(self.ends, (1, 0))[:-1]]
        mixed = UNIGRAM_SHARE * unigram + (1 - UNIGRAM_SHARE) * following
        return mixed / mixed.sum()  # the last word of the text may be followed by none
