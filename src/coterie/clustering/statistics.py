"""What is remembered of each word: how the contexts it followed looked to the clusters.

Shapes: T tokens, K values a row, D width, V words, C clusters, B words in a block.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from coterie.buffers import ExactBuffers
from coterie.loss.grouping import Grouping
from coterie.loss.levels import cluster_logits

Smoothing = Literal["mean", "paper"]
Clusters = Callable[[], tuple[Tensor, Tensor | None]]  # gives vectors (C, D) and biases (C,), if anybody asks


class Statistic(ExactBuffers):
    """A running mean, one row a word, of something computed for every token whose target is that word.

    The mean forgets by λ(w) at each occurrence. It starts at zero with weight zero, and is read as `total / weight`,
    so that the first occurrence counts wholly and no start value lingers. Kept in float32 whatever the layer's dtype.
    """

    NAME: str
    total: Tensor  # (V, K)
    weight: Tensor  # (V,) how much of `total` is samples; 0: never seen

    def __init__(
        self, n_words: int, row: int, smoothing: Smoothing = "mean", device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.register_buffer("total", torch.zeros(n_words, row, dtype=torch.float32, device=device))
        self.register_buffer("weight", torch.zeros(n_words, dtype=torch.float32, device=device))
        # Says in a checkpoint what the rows are: those of another kind may have the same shape.
        self.register_buffer(self.NAME, torch.zeros((), dtype=torch.int64, device=device))

    @property
    def seen(self) -> Tensor:
        """(V,) whether anything is remembered of the word."""
        return self.weight > 0

    def sample(self, hidden: Tensor, clusters: Clusters) -> Tensor:
        """What the tokens tell: (T, D) → (T, K). `clusters`: vectors (C, D) and biases (C,) to hold them against."""
        raise NotImplementedError

    def logits(self, words: Tensor, cluster_weight: Tensor, cluster_bias: Tensor | None) -> Tensor:
        """Mean log P(c|h) of the words, up to one constant a word: (B,) → (B, C)."""
        raise NotImplementedError

    def share(self, count: Tensor, n: Tensor) -> Tensor:
        """1 - λ(w)ⁿ: what n occurrences of a word that has `count` in all count for."""
        inverse = 1 / count.clamp(min=1).to(torch.float32)
        if self.smoothing == "paper":
            # The paper prints λ = 1/f: almost the last sample alone, and nothing at all of a word that occurs once.
            return 1 - inverse**n
        # λ = 1 - 1/f: the mean over about one pass of the data. As a power it would be rounding for frequent words.
        return -torch.expm1(n * torch.log1p(-inverse))

    @torch.no_grad()
    def update(self, sample: Tensor, grouping: Grouping, counts: Tensor, loss: Tensor) -> None:
        """Takes in a batch; n occurrences of a word count as λⁿ on the old value and their mean on the rest.

        `sample` (T, K), `counts` (V,). A batch whose `loss` () is not finite is left out whole. Shapes are static and
        nothing waits for the device.
        """
        sample = sample.to(torch.float32)
        order, place, target = grouping.order, grouping.place, grouping.word
        used = place < counts.numel()  # (T,) in order
        # One run per distinct word: `run` numbers them in order, at most T of them.
        starts = torch.ones_like(used)
        starts[1:] = place[1:] != place[:-1]
        run = starts.cumsum(0) - 1  # (T,) in order
        run_of = torch.empty_like(run).scatter_(0, order, run)  # (T,)
        n = torch.zeros_like(sample[:, 0]).index_add_(0, run_of, torch.ones_like(sample[:, 0]))  # (T,) by run
        mean = torch.zeros_like(sample).index_add_(0, run_of, sample) / n.clamp(min=1)[:, None]
        at = torch.zeros_like(target).scatter_(0, run, target[order].clamp(min=0))  # (T,) each run's word
        taken = torch.zeros_like(used).scatter_(0, run, used) & torch.isfinite(loss)  # (T,) by run
        share = self.share(counts[at], n)  # (T,) what the batch's mean counts for
        # Runs not taken add exactly zero, to whatever row they point at: the result does not depend on the order.
        change = share[:, None] * (mean - self.total[at])
        self.total.index_add_(0, at, torch.where(taken[:, None], change, 0.0))
        self.weight.index_add_(0, at, torch.where(taken, share * (1 - self.weight[at]), 0.0))

    def mean(self, words: Tensor) -> Tensor:
        """The remembered means, (B,) → (B, K); zero for a word never seen."""
        weight = self.weight[words]
        return self.total[words] / torch.where(weight > 0, weight, 1.0)[:, None]


class Table(Statistic):
    """The paper's q(w, c): the mean of log₂ P(c|h), V × C."""

    NAME = "table"

    def __init__(
        self, n_words: int, n_clusters: int, smoothing: Smoothing = "mean", device: torch.device | str | None = None
    ) -> None:
        super().__init__(n_words, n_clusters, smoothing, device)

    @torch.no_grad()
    def sample(self, hidden: Tensor, clusters: Clusters) -> Tensor:
        # Over all clusters, the empty ones too: they may be offered words again.
        weight, bias = clusters()
        bias = None if bias is None else bias.to(hidden.dtype)
        return cluster_logits(hidden, weight.to(hidden.dtype), bias).log_softmax(-1) / math.log(2)

    def logits(self, words: Tensor, cluster_weight: Tensor, cluster_bias: Tensor | None) -> Tensor:
        return self.mean(words) * math.log(2)


class MeanHidden(Statistic):
    """The mean of h, V × D, read against today's cluster vectors and what today maps h to them; of h_c, where the way
    there is not linear.

    log P(c|h) = h_c · U_c + b_c - log Z(h), and Z is the same for all clusters: how they compare for a word follows
    from the mean of h_c alone, and that from the mean of h.
    """

    NAME = "mean_hidden"

    def sample(self, hidden: Tensor, clusters: Clusters) -> Tensor:
        return hidden

    def logits(self, words: Tensor, cluster_weight: Tensor, cluster_bias: Tensor | None) -> Tensor:
        means, vectors = self.mean(words), cluster_weight.float().T
        return means @ vectors if cluster_bias is None else torch.addmm(cluster_bias.float(), means, vectors)


@torch.no_grad()
def log_cluster_share(logits: Callable[[Tensor], Tensor], words: Tensor, counts: Tensor, block: int) -> Tensor:
    """log f(c), where f(c) is the share of all occurrences that cluster c predicts, (C,).

    `logits`: words (B,) → (B, C); summed over `words`, `block` of them at a time, weighted by `counts` (V,).
    """
    parts = [counts[part].clamp(min=1).float() @ logits(part).softmax(-1) for part in words.split(block)]
    share = torch.stack(parts).double().sum(0)
    return (share / share.sum()).clamp(min=1e-30).log().float()
