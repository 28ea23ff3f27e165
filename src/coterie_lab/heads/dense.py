"""Shared by several heads: batches as rows, losses over all V scores, inference from all V probabilities.

Shapes: T tokens, D width, V words.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.checks import check_draw, check_k, check_target
from coterie.inference import COLDEST
from coterie.search.sampling import from_candidates
from coterie.softmax import HeadOutput


def precise(scores: Tensor) -> Tensor:
    """Scores in the precision to sum them in: float64 stays, everything else becomes float32."""
    return scores if scores.dtype == torch.float64 else scores.float()


def flat(hidden: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """A batch (..., D), (...) as rows (T, D), words (T,), which are 0 where ignored, and whether each counts (T,)."""
    words = check_target(hidden, target).reshape(-1)
    used = words != ignore_index
    return hidden.reshape(-1, hidden.shape[-1]), torch.where(used, words, 0), used


def mean_loss(output: Tensor, target: Tensor, ignore_index: int) -> HeadOutput:
    """The output in the target's shape, and its mean; `output` (T,) is 0 where the target (...) is ignored."""
    loss = -output.sum() / (target != ignore_index).sum().clamp(min=1)
    return HeadOutput(output.reshape(target.shape), loss)


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float = 0.0) -> HeadOutput:
    """log P(target) and the mean loss, smoothed if asked for; `logits` (..., V), `target` (...)."""
    rows, flat = precise(logits.reshape(-1, logits.shape[-1])), target.reshape(-1)  # (T, V), (T,)
    if not label_smoothing:
        lost = F.cross_entropy(rows, flat, ignore_index=ignore_index, reduction="none")
        return mean_loss(-lost, target, ignore_index)
    log_prob = rows.log_softmax(-1)  # computed once for both sums, because it is large
    lost = F.nll_loss(log_prob, flat, ignore_index=ignore_index, reduction="none")
    even = torch.where(flat != ignore_index, log_prob.mean(-1), 0.0)
    smoothed = (1 - label_smoothing) * -lost + label_smoothing * even
    return HeadOutput(-lost.reshape(target.shape), mean_loss(smoothed, target, ignore_index).loss)


class DenseAnswers:
    """Implements `predict`, `topk` and `sample` for a head with `log_prob`."""

    log_prob: Callable[[Tensor], Tensor]  # (..., D) → (..., V)

    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable class: (..., D) → (...)."""
        return self.log_prob(hidden).argmax(-1)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable classes, best first: (..., D) → log P and classes, both (..., k)."""
        log_prob = self.log_prob(hidden)
        check_k(k, log_prob.shape[-1])
        values, indices = log_prob.topk(k)
        return values, indices

    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws one class per hidden vector, (..., D) → (...): temperature first, then top-k, then top-p."""
        log_prob = self.log_prob(hidden)
        check_draw(log_prob.shape[-1], temperature, top_k, top_p)
        if temperature < COLDEST:
            return log_prob.argmax(-1)
        values, words = log_prob.reshape(-1, log_prob.shape[-1]).sort(-1, descending=True)
        probability = ((values[:, :top_k] - values[:, :1]) / temperature).softmax(-1)
        drawn = from_candidates(probability, words, math.inf if top_p is None else top_p, generator)
        return drawn.reshape(log_prob.shape[:-1])
