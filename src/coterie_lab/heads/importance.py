"""Importance sampling: the sum over all words estimated from a few (Bengio & Senécal; Jean et al.).

Shapes: T tokens, D width, V words, K draws.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from coterie.checks import check_whole
from coterie.faults import check_target
from coterie.softmax import HeadOutput
from coterie_lab.heads.dense import mean_loss, precise
from coterie_lab.heads.full import Biases, FullSoftmax
from coterie_lab.heads.proposals import Kind, Proposal

SAMPLES = 8192


def sampled_log_prob(target_logit: Tensor, logits: Tensor, log_q: Tensor, hit: Tensor) -> Tensor:
    """log P(target) as the draws estimate it, (T,).

    Σ_w exp(s_w) is taken as exp(s_target) + Σ_k exp(s_k) / (K q_k) over the draws that are not the target: its mean is
    exact. `target_logit` (T,), `logits` (T, K), `log_q` (K,) of a draw, `hit` (T, K) where a draw is the target.
    """
    corrected = logits - (log_q + math.log(log_q.numel())).to(logits.dtype)
    others = corrected.masked_fill(hit, -torch.inf).logsumexp(-1)
    return target_logit - torch.logaddexp(target_logit, others)


class ImportanceSampling(FullSoftmax):
    """A full softmax trained on the targets and one set of drawn words a batch; evaluated as what it is."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int],
        proposal: Kind = "unigram",
        samples: int = SAMPLES,
        text: NDArray[Any] | None = None,
        biases: Biases = "counts",
        ignore_index: int = -100,
    ) -> None:
        """`counts` (V,); `samples`: K, at most V of them are drawn; `text`: for the proposal "bigram";
        `biases`: where they start."""
        super().__init__(in_features, n_classes, counts, biases, ignore_index)
        self.samples = check_samples(samples, n_classes)
        self.proposal = Proposal(proposal, counts, n_classes, text)

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:  # type: ignore[override]
        """log P(target), in training an estimate, and the mean loss. `hidden` (..., D), `target` (...)."""
        if not self.training:
            return super().forward(hidden, target)
        target = check_target(hidden, target)
        rows, words = hidden.reshape(-1, self.in_features), target.reshape(-1)
        used = words != self.ignore_index  # (T,)
        words = torch.where(used, words, 0)
        drawn = self.proposal(words, used, self.samples)
        target_logit, logits = chosen_logits(rows, self.weight, self.bias, words, drawn.words)
        output = sampled_log_prob(target_logit, logits, drawn.log_q, words[:, None] == drawn.words)
        return mean_loss(torch.where(used, output, 0.0), target, self.ignore_index)


def chosen_logits(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's score of its target, (T,), and of all words drawn, (T, K); `hidden` (T, D), `weight` (V, D)."""
    n = target.numel()
    words = torch.cat((target, drawn))  # (T + K,): the rows of both in one gather
    vectors, biases = F.embedding(words, weight), F.embedding(words, bias[:, None]).squeeze(1)
    of_target = precise(hidden * vectors[:n]).sum(-1) + biases[:n]
    return of_target, precise(F.linear(hidden, vectors[n:], biases[n:]))


def check_samples(samples: int, n_classes: int) -> int:
    """K: as many as asked for, and no more than there are words."""
    check_whole("samples", samples)
    if samples < 1:
        raise ValueError(f"samples must be at least 1; got {samples}")
    return min(samples, n_classes)
