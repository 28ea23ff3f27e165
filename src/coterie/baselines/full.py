"""The full softmax: linear and cross entropy, behind the layer's contract.

Shapes: T tokens, D width, V words.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from coterie.baselines.dense import DenseAnswers
from coterie.head import HeadOutput


class FullSoftmax(DenseAnswers, nn.Linear):
    """What every output layer is compared with: all V logits of every token."""

    def __init__(self, in_features: int, n_classes: int, ignore_index: int = -100) -> None:
        super().__init__(in_features, n_classes)
        self.n_classes = n_classes
        self.ignore_index = ignore_index

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:  # type: ignore[override]
        """log P(target) and the mean loss. `hidden` (..., D), `target` (...)."""
        logits = super().forward(hidden).reshape(-1, self.n_classes).float()  # (T, V)
        lost = F.cross_entropy(logits, target.reshape(-1), ignore_index=self.ignore_index, reduction="none")
        loss = lost.sum() / (target != self.ignore_index).sum().clamp(min=1)
        return HeadOutput(-lost.reshape(target.shape), loss)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        return super().forward(hidden).float().log_softmax(-1)
