"""torch's adaptive softmax with the layer's interface: any leading shape, ignored targets, autocast.

Shapes: T tokens, D width, V words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.checks import check_whole
from coterie.softmax import HeadOutput
from coterie_lab.heads.dense import DenseAnswers, flat, mean_loss
from coterie_lab.heads.registry import register


class AdaptiveSoftmax(DenseAnswers, nn.Module):
    """Frequent words in a head, rarer ones in tails of smaller vectors. Words must be numbered by frequency."""

    graphable = False  # torch's layer synchronises to decide which tails to compute

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int] | None = None,
        div_value: float | None = None,
        ignore_index: int = -100,
    ) -> None:
        """`cutoffs`: where the tails begin (2,000 and 10,000, or in a small vocabulary a tenth and a half of it).

        div_value: how many times narrower each tail's vectors are than those before (4, less if that left none).
        """
        super().__init__()
        if cutoffs is None:
            cutoffs = default_cutoffs(n_classes)
        check_whole("ignore_index", ignore_index)
        if div_value is None:
            div_value = min(4.0, in_features ** (1 / max(len(cutoffs), 1)) * (1 - 1e-9))
        if in_features < div_value ** len(cutoffs):
            raise ValueError(
                f"in_features = {in_features} divided {len(cutoffs)} times by div_value = {div_value:g} leaves the "
                "rarest words vectors of no width: give fewer cutoffs, a smaller div_value, or a wider layer"
            )
        self.ignore_index = ignore_index
        self.inner = nn.AdaptiveLogSoftmaxWithLoss(in_features, n_classes, cutoffs, div_value)

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        rows, words, used = flat(hidden, target, self.ignore_index)
        own = self.inner.head.weight.dtype
        with torch.autocast(hidden.device.type, enabled=False):  # its indexed assignments need one dtype throughout
            output = rows.new_zeros(words.shape, dtype=own)
            if bool(used.any()):
                output = output.masked_scatter(used, self.inner(rows.to(own)[used], words[used]).output)
        # A tail without targets in the batch gets a gradient of zeros, as DistributedDataParallel needs; so do the
        # hidden vectors where all targets are ignored.
        nothing = sum((part[:0].sum() for part in (rows, *self.parameters())), output.new_zeros(()))
        output, loss = mean_loss(output, target, self.ignore_index)
        return HeadOutput(output, loss + nothing)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        with torch.autocast(hidden.device.type, enabled=False):
            rows = self.inner.log_prob(hidden.reshape(-1, hidden.shape[-1]).to(self.inner.head.weight.dtype))
        return rows.reshape(*hidden.shape[:-1], self.inner.n_classes)


def default_cutoffs(n_classes: int) -> tuple[int, ...]:
    """2,000 and 10,000, as Grave et al. have them on text8; in a small vocabulary a tenth and a half of it."""
    if n_classes > 20_000:
        return 2000, 10_000
    return (max(1, n_classes // 10), max(2, n_classes // 2)) if n_classes > 2 else (1,)


@register("adaptive")
def adaptive(in_features: int, n_classes: int, counts: Tensor, **options: Any) -> AdaptiveSoftmax:
    """The layer, which takes words as numbered by frequency and needs no counts."""
    return AdaptiveSoftmax(in_features, n_classes, **options)
