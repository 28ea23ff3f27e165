"""Running statistics of each word's contexts, from which the E-step scores clusters for words.

Shapes: T tokens, K values a row, D width, V words, C clusters, B words in a block.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from coterie.buffers import Kept
from coterie.loss.grouping import Grouping
from coterie.loss.levels import cluster_logits

Smoothing = Literal["mean", "paper"]
Clusters = Callable[[], tuple[Tensor, Tensor | None]]  # computes vectors (C, D) and biases (C,) if they are needed


class Statistic(Kept):
    """A running mean per word of a sample that is computed for every token whose target is that word.

    Each occurrence multiplies the old mean by λ(w). The mean is `total / weight`, both zero at first, so that the first
    occurrence counts fully and the initial value not at all. Kept in float32 whatever the layer's dtype.
    """

    NAME: str
    total: Tensor  # (V, K)
    weight: Tensor  # (V,) the weight of all samples in `total`; 0: never seen

    def __init__(
        self, n_words: int, row: int, smoothing: Smoothing = "mean", device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.keep("total", n_words, row, dtype=torch.float32, device=device)
        self.keep("weight", n_words, dtype=torch.float32, device=device)

    def get_extra_state(self) -> Tensor:
        """Total and weight side by side, (V, K + 1)."""
        return torch.cat((self.total, self.weight[:, None]), 1)

    def set_extra_state(self, state: Tensor) -> None:
        """Takes back what `get_extra_state` gave."""
        if state.shape != (self.total.shape[0], self.total.shape[1] + 1):
            raise RuntimeError(
                f"the checkpoint's statistic has shape {tuple(state.shape)}; expected one row per class and one column "
                f"more than {self.total.shape[1]}: build the layer with the checkpoint's sizes"
            )
        self.follow(state.device if self.total.is_meta else self.total.device)
        self.total.copy_(state[:, :-1])
        self.weight.copy_(state[:, -1])

    @property
    def seen(self) -> Tensor:
        """Whether each word has occurred, (V,)."""
        return self.weight > 0

    def sample(self, hidden: Tensor, clusters: Clusters) -> Tensor:
        """The samples to average: (T, D) → (T, K). `clusters` computes cluster vectors (C, D) and biases (C,)."""
        raise NotImplementedError

    def logits(self, words: Tensor, cluster_weight: Tensor, cluster_bias: Tensor | None) -> Tensor:
        """Mean log P(c|h) of words, up to a constant per word: (B,) → (B, C)."""
        raise NotImplementedError

    def share(self, count: Tensor, n: Tensor) -> Tensor:
        """1 - λ(w)ⁿ, the weight of n new occurrences of a word with `count` occurrences in all."""
        inverse = 1 / count.clamp(min=1).to(torch.float32)
        if self.smoothing == "paper":
            # The paper prints λ = 1/f, which keeps little but the last sample, and nothing of a word that occurs once.
            return 1 - inverse**n
        # λ = 1 - 1/f averages about one pass of the data. Not as a power, which would be imprecise for frequent words.
        return -torch.expm1(n * torch.log1p(-inverse))

    @torch.no_grad()
    def update(self, sample: Tensor, grouping: Grouping, counts: Tensor, loss: Tensor) -> None:
        """Adds a batch: n occurrences of a word weight its old mean by λⁿ and their own mean by 1 - λⁿ.

        `sample` (T, K), `counts` (V,). If `loss` () is not finite, the whole batch is left out. Shapes are static and
        nothing synchronises.
        """
        sample = sample.to(torch.float32)
        order, place, target = grouping.order, grouping.place, grouping.word
        # Words that stand alone belong to no cluster, and have nothing to remember.
        used = torch.arange(place.numel(), device=place.device) < grouping.starts[-2]  # (T,) in order
        # Each distinct word is a run of tokens; `run` numbers the runs in order, at most T of them.
        starts = torch.ones_like(used)
        starts[1:] = place[1:] != place[:-1]
        run = starts.cumsum(0) - 1  # (T,) in order
        run_of = torch.empty_like(run).scatter_(0, order, run)  # (T,)
        n = torch.zeros_like(sample[:, 0]).index_add_(0, run_of, torch.ones_like(sample[:, 0]))  # (T,) by run
        mean = torch.zeros_like(sample).index_add_(0, run_of, sample) / n.clamp(min=1)[:, None]
        at = torch.zeros_like(target).scatter_(0, run, target[order].clamp(min=0))  # (T,) each run's word
        taken = torch.zeros_like(used).scatter_(0, run, used) & torch.isfinite(loss)  # (T,) by run
        share = self.share(counts[at], n)  # (T,) the weight of the batch's mean
        # Runs that are left out add exactly zero to some row, so the result does not depend on the order of additions.
        change = share[:, None] * (mean - self.total[at])
        self.total.index_add_(0, at, torch.where(taken[:, None], change, 0.0))
        self.weight.index_add_(0, at, torch.where(taken, share * (1 - self.weight[at]), 0.0))

    def forget(self, words: Tensor) -> None:
        """Treats words as never seen."""
        self.weight[words] = 0
        self.total[words] = 0

    def mean(self, words: Tensor) -> Tensor:
        """The means of words, (B,) → (B, K); zero for a word never seen."""
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
        # Empty clusters are included: words may move into them again.
        weight, bias = clusters()
        bias = None if bias is None else bias.to(hidden.dtype)
        return cluster_logits(hidden, weight.to(hidden.dtype), bias).log_softmax(-1) / math.log(2)

    def logits(self, words: Tensor, cluster_weight: Tensor, cluster_bias: Tensor | None) -> Tensor:
        return self.mean(words) * math.log(2)


class MeanHidden(Statistic):
    """The mean of h, V × D, to be scored with the current cluster vectors; of h_c, if an activation makes it nonlinear.

    log P(c|h) = h_c · U_c + b_c - log Z(h), and Z is the same for all clusters: to compare clusters for a word, the
    mean of h_c suffices, which is a linear function of the mean of h.
    """

    NAME = "mean_hidden"

    def sample(self, hidden: Tensor, clusters: Clusters) -> Tensor:
        return hidden

    def logits(self, words: Tensor, cluster_weight: Tensor, cluster_bias: Tensor | None) -> Tensor:
        means, vectors = self.mean(words), cluster_weight.float().T
        return means @ vectors if cluster_bias is None else torch.addmm(cluster_bias.float(), means, vectors)


@torch.no_grad()
def log_cluster_share(logits: Callable[[Tensor], Tensor], words: Tensor, counts: Tensor, block: int) -> Tensor:
    """log f(c), (C,), where f(c) is the share of all occurrences that the clusters' probabilities give to cluster c.

    `logits`: words (B,) → (B, C), computed for `block` of the `words` at a time and weighted by `counts` (V,).
    """
    parts = [counts[part].clamp(min=1).float() @ logits(part).softmax(-1) for part in words.split(block)]
    share = torch.stack(parts).double().sum(0)
    return (share / share.sum()).clamp(min=1e-30).log().float()
