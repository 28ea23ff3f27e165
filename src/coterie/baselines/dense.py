"""Sampling from all V probabilities: what a head without a shorter way does.

Shapes: V words.
"""

import torch
from torch import Tensor


def sample(
    log_prob: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One draw each, (..., V) → (...); temperature first, then top-k, then the nucleus of mass p."""
    if temperature == 0:
        return log_prob.argmax(-1)
    values, words = log_prob.reshape(-1, log_prob.shape[-1]).sort(-1, descending=True)
    probability = (values[:, :top_k] / temperature).softmax(-1)
    if top_p is not None:
        before = probability.cumsum(-1) - probability
        probability = torch.where(before < top_p, probability, 0.0)
    drawn = torch.multinomial(probability, 1, generator=generator)
    return words.gather(-1, drawn).reshape(log_prob.shape[:-1])
