"""torch's adaptive softmax, behind the layer's contract: any leading shape, ignored targets, autocast.

Shapes: T tokens, D width, V words.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.baselines.dense import DenseAnswers
from coterie.head import HeadOutput


class AdaptiveSoftmax(DenseAnswers, nn.Module):
    """Frequent words in a head, rarer ones in tails of smaller vectors. Words must be numbered by frequency."""

    graphable = False  # torch's looks at the data to decide which tails to compute

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int] | None = None,
        div_value: float = 4.0,
        ignore_index: int = -100,
    ) -> None:
        """`cutoffs`: where the tails begin (2,000 and 10,000, or in a small vocabulary a tenth and a half of it)."""
        super().__init__()
        if cutoffs is None:
            cutoffs = (2000, 10_000) if n_classes > 20_000 else (max(1, n_classes // 10), max(2, n_classes // 2))
        self.ignore_index = ignore_index
        self.inner = nn.AdaptiveLogSoftmaxWithLoss(in_features, n_classes, cutoffs, div_value)

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        rows, words = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
        used = words != self.ignore_index  # (T,)
        with torch.autocast(hidden.device.type, enabled=False):  # its indexed assignments want one dtype throughout
            found = self.inner(rows.float()[used], words[used]).output if bool(used.any()) else rows.new_zeros(0)
        output = rows.new_zeros(words.shape, dtype=torch.float32).masked_scatter(used, found)
        # A tail without targets in the batch gets a gradient of zeros, as DistributedDataParallel needs.
        nothing = sum((parameter.sum() * 0 for parameter in self.parameters()), output.new_zeros(()))
        loss = -output.sum() / used.sum().clamp(min=1) + nothing
        return HeadOutput(output.reshape(target.shape), loss)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        with torch.autocast(hidden.device.type, enabled=False):
            rows = self.inner.log_prob(hidden.reshape(-1, hidden.shape[-1]).float())
        return rows.reshape(*hidden.shape[:-1], -1)
