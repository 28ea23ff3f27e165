"""D-softmax: the rarer a word, the shorter its vector (Chen et al. 2015).

The hidden vector is split into parts, one per frequency band, and the words of a band use only their part.

Shapes: T tokens, D width, V words, R words in a band.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.checks import check_counts, check_target, check_whole
from coterie.softmax import HeadOutput
from coterie_lab.heads.adaptive import default_cutoffs
from coterie_lab.heads.dense import DenseAnswers, cross_entropy, precise
from coterie_lab.heads.registry import register


@register("differentiated")
class DifferentiatedSoftmax(DenseAnswers, nn.Module):
    """A full softmax whose weight matrix is zero except for one block per band."""

    rank: Tensor  # (V,) each word's rank by frequency

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int],
        cutoffs: Sequence[int] | None = None,
        widths: Sequence[int] | None = None,
        ignore_index: int = -100,
    ) -> None:
        """`counts` (V,).

        cutoffs: the ranks by frequency at which a new band begins (those of the adaptive softmax).
        widths: of each band's vectors, D together (half of D, a quarter, …; the last has as many as the one before).
        """
        super().__init__()
        check_whole("ignore_index", ignore_index)
        self.ignore_index = ignore_index
        cutoffs = default_cutoffs(n_classes) if cutoffs is None else cutoffs
        ends = [*cutoffs, n_classes]
        if ends != sorted(set(ends)) or ends[0] < 1:
            raise ValueError(f"cutoffs must ascend from 1 to below n_classes = {n_classes}; got {list(cutoffs)}")
        if widths is None:
            widths = [max(1, in_features >> (band + 1)) for band in range(len(ends) - 1)]
            widths = [*widths, in_features - sum(widths)]
        if len(widths) != len(ends) or sum(widths) != in_features or min(widths) < 1:
            raise ValueError(
                f"{len(ends)} bands need as many widths, each at least 1, that add up to in_features = {in_features}; "
                f"got {list(widths)}"
            )
        self.widths = list(widths)
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        self.bands = nn.ModuleList(nn.Linear(width, size) for width, size in zip(widths, sizes, strict=True))
        order = check_counts(counts, n_classes).argsort(descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(n_classes)
        self.register_buffer("rank", rank)

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        target = check_target(hidden, target)
        used = target != self.ignore_index
        place = F.embedding(torch.where(used, target, 0), self.rank[:, None])[..., 0]
        # Ignored tokens get -100, since a rank may be equal to ignore_index but is never negative.
        return cross_entropy(self._logits(hidden), torch.where(used, place, -100), -100)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        return precise(self._logits(hidden)).log_softmax(-1)[..., self.rank]

    def _logits(self, hidden: Tensor) -> Tensor:
        """The logits sorted by rank: (..., D) → (..., V)."""
        pieces = hidden.split(self.widths, -1)
        return torch.cat([band(piece) for band, piece in zip(self.bands, pieces, strict=True)], -1)
