"""What a trained two-level softmax is asked: probabilities, the best words, draws, the next words of a beam.

Shapes: T rows, B hypotheses, D width, V words (classes), C clusters, S words of a cluster.
"""

from collections.abc import Hashable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.checks import check_draw, check_k
from coterie.clustering.partition import Partition
from coterie.loss.levels import cluster_log_softmax, cluster_logits, split
from coterie.projection import Projected, plain
from coterie.replay import Work, forget, replayed
from coterie.search import exact as search
from coterie.search import sampling
from coterie.search.words import Words, on_gpu

MOST_REPLAYED = 1 << 23  # logits of a search that is worth a recording: launching more takes less long than computing
COLDEST = torch.finfo(torch.float32).tiny  # below it a temperature is nothing: only the best word is left


class Answers(Projected):
    """The layer's answers; it is never trained by itself."""

    n_classes: int
    partition: Partition
    bias: nn.Parameter | None  # (V,)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """log P(w|h) of every class: (..., D) → (..., V)."""
        words, word_hidden, log_clusters = self._answer(hidden)
        return words.log_prob(word_hidden, log_clusters).reshape(*hidden.shape[:-1], self.n_classes)

    def cluster_log_prob(self, hidden: Tensor) -> Tensor:
        """log P(c|h) of every cluster, -inf for an empty one: (..., D) → (..., C)."""
        _, _, log_clusters = self._answer(hidden)
        return log_clusters.reshape(*hidden.shape[:-1], self.n_clusters)

    def member_log_prob(self, hidden: Tensor, cluster: int) -> Tensor:
        """log P(w|c, h) of the words of one cluster, in the order of `partition.members`: (..., D) → (..., S)."""
        words, word_hidden, _ = self._answer(hidden)
        members = self.partition.members(cluster)
        return words.logits_of(word_hidden, members).log_softmax(-1).reshape(*hidden.shape[:-1], members.numel())

    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable class: (..., D) → (...)."""
        return self.topk(hidden, 1)[1].squeeze(-1)

    def _apply(self, *given: Any, **options: Any) -> Self:
        forget(self)
        moved: Self = super()._apply(*given, **options)  # type: ignore[no-untyped-call]
        return moved

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable classes, best first: (..., D) → log P and classes, both (..., k)."""
        check_k(k, self.n_classes)
        values, indices = self._replayed(
            ("topk", k), lambda rows: search.topk(*self._answer(rows, shares=False), k), hidden
        )
        return values.reshape(*hidden.shape[:-1], k), indices.reshape(*hidden.shape[:-1], k)

    @torch.no_grad()
    def extend(self, hidden: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The k best extensions of B hypotheses by a word, as a step of a beam search wants them, best first.

        `hidden` (..., B, D), `score` (..., B): log P of each hypothesis, -inf: there is none → log P of hypothesis and
        word, the hypothesis and the word, each (..., k). On a CPU, words that cannot be among the k best are not
        computed.
        """
        if score.shape != hidden.shape[:-1] or not score.dim():
            raise ValueError(
                f"score must have one number per hypothesis, shape {tuple(hidden.shape[:-1])}; got {tuple(score.shape)}"
            )
        if not 1 <= k <= score.shape[-1] * self.n_classes:
            raise ValueError(
                f"k must be from 1 to {score.shape[-1] * self.n_classes}, all extensions of the hypotheses; got {k}"
            )

        def work(rows: Tensor, score: Tensor) -> tuple[Tensor, ...]:
            questions = score.reshape(-1, score.shape[-1])  # (T, B)
            values, extensions = search.extend(*self._answer(rows, shares=False), questions, k)
            return values, extensions // self.n_classes, extensions % self.n_classes

        values, hypothesis, word = self._replayed(("extend", k), work, hidden, score)
        shape = (*score.shape[:-1], k)
        return values.reshape(shape), hypothesis.reshape(shape), word.reshape(shape)

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """One exact draw each, (..., D) → (...); temperature first, then top-k, then the nucleus of mass p."""
        check_draw(self.n_classes, temperature, top_k, top_p)
        if temperature < COLDEST:
            return self.predict(hidden)
        drawn = sampling.sample(*self._answer(hidden), temperature, top_k, top_p, generator)
        return drawn.reshape(hidden.shape[:-1])

    # -- inside -------------------------------------------------------------------------------------------------

    def _answer(self, hidden: Tensor, shares: bool = True) -> tuple[Words, Tensor, Tensor]:
        """What search needs: the word level, h_w (T, D) and log P(c|h) (T, C).

        Without `shares` it is logits of that on a GPU, whose kernels then need no launch more to normalise them.
        """
        self._check_hidden(hidden)
        both = self._project(hidden.reshape(-1, self.in_features))
        cluster_hidden, word_hidden = split(both, None, self.in_features)
        words = Words(self.weight, self.bias, self.partition)
        if gpu := on_gpu(words, cluster_hidden):
            logits = F.linear(cluster_hidden, self.cluster_weight, self._cluster_shift())
            return words, word_hidden, gpu.shares(logits) if shares else logits
        logits = cluster_logits(cluster_hidden, self.cluster_weight, self._cluster_shift())
        return words, word_hidden, cluster_log_softmax(logits, self.partition)

    def _replayed(self, question: Hashable, work: Work, hidden: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """What `work` answers to hidden vectors (..., D), which soon is replayed where the host takes longest."""
        projection, place = self.projection, self.partition
        rows = hidden.numel() // self.in_features
        few = hidden.is_cuda and 0 < rows * self.n_classes <= MOST_REPLAYED
        # Whatever else somebody made of the parameters may read what is not listed here.
        if not few or not plain(projection) or "parametrizations" in self._modules:
            return work(hidden, *others)
        linear = (None, None) if projection is None else (projection.weight, projection.bias)
        reads = (
            self.weight, self.bias, self.cluster_weight, self.cluster_bias,
            None if self.prior is None else self.prior.shift, *linear,
            place.words, place.offsets, place.cluster_of,
        )  # fmt: skip
        return replayed(self, (question, self.activation), reads, work, hidden, *others)

    def _check_hidden(self, hidden: Tensor) -> None:
        if hidden.ndim == 0 or hidden.shape[-1] != self.in_features:
            raise ValueError(f"hidden must be (..., {self.in_features}) wide; got shape {tuple(hidden.shape)}")
        if hidden.dtype != self.weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
            raise TypeError(
                f"hidden is {hidden.dtype}, the layer {self.weight.dtype}: convert one of them, or use torch.autocast"
            )
