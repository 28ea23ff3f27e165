"""What a head without a shorter way answers from all V probabilities.

Shapes: D width, V words.
"""

import torch
from torch import Tensor


class DenseAnswers:
    """The most probable classes and draws, of anything that has `log_prob`."""

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        raise NotImplementedError

    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable class: (..., D) → (...)."""
        return self.log_prob(hidden).argmax(-1)

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
        """One draw each, (..., D) → (...); temperature first, then top-k, then the nucleus of mass p."""
        log_prob = self.log_prob(hidden)
        if temperature == 0:
            return log_prob.argmax(-1)
        values, words = log_prob.reshape(-1, log_prob.shape[-1]).sort(-1, descending=True)
        probability = ((values[:, :top_k] - values[:, :1]) / temperature).softmax(-1)
        if top_p is not None:
            before = probability.cumsum(-1) - probability
            probability = torch.where(before < top_p, probability, 0.0)
        drawn = torch.multinomial(probability, 1, generator=generator)
        return words.gather(-1, drawn).reshape(log_prob.shape[:-1])
