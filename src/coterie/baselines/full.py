"""The full softmax: linear and cross entropy, behind the layer's contract.

Shapes: T tokens, D width, V words.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.baselines import dense
from coterie.head import HeadOutput


class FullSoftmax(nn.Linear):
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

    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable class: (..., D) → (...)."""
        return super().forward(hidden).argmax(-1)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable classes, best first: (..., D) → log P and classes, both (..., k)."""
        values, indices = self.log_prob(hidden).topk(k)
        return values, indices

    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """One draw each: (..., D) → (...)."""
        return dense.sample(self.log_prob(hidden), temperature, top_k, top_p, generator)
